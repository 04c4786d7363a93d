"""What surrounds a forward pass: an input into samples, outputs into a result.

Imported by the gateway through the task files, so torch and transformers are imported inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class InputError(Exception):
    """The client's input cannot be served; the message says what would be right.

    `field` is the request's field at fault. With `of_item`, the index of the item is added to it.
    """

    def __init__(self, message: str, *, field: str = "inputs", of_item: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.of_item = of_item


@dataclass
class Sample:
    """One row of a forward pass."""

    features: "dict[str, torch.Tensor]"
    """What the model takes: tensors of shape (1, …)."""
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """What only postprocessing needs."""

    @property
    def length(self) -> int:
        """Length of the dimension that a batch pads, in tokens."""
        return self.features["input_ids"].shape[1]


class Stages(ABC):
    """The replica side of a task. One instance serves one model, from several threads in turn."""

    auto_class: ClassVar[str]
    """Name of the transformers class that loads the model."""
    per_token: ClassVar[tuple[str, ...]] = ()
    """Outputs of shape (batch, padded length, …): rows of padding are cut off."""

    @abstractmethod
    def attach(self, model: Any) -> None:
        """Take the loaded model, whose configuration postprocessing needs."""

    @abstractmethod
    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        """The samples of one input. Raises `InputError`."""

    @abstractmethod
    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """The result of one input, ready for JSON, from the outputs of its samples in order.

        An output holds the sample's features and extras, and the model's outputs as CPU tensors of
        shape (1, …) without padding.
        """

    @abstractmethod
    def probe(self, length: int) -> Sample:
        """A sample of a given length, to measure the engine with."""

    @property
    @abstractmethod
    def padding(self) -> Mapping[str, int]:
        """Feature → the value that pads it; features not named are padded with 0."""

    @property
    def pads(self) -> bool:
        """Whether rows of unlike length can share a batch."""
        return True

    @property
    def padding_side(self) -> str:
        return "right"


class TextStages(Stages):
    """A tokenizer in front of the model."""

    tokenizer_options: ClassVar[Mapping[str, Any]] = {}
    """What else the tokenizer shall return, for postprocessing."""

    def __init__(self, folder: Path) -> None:
        import transformers

        library: Any = transformers
        self.tokenizer: Any = library.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )
        self.config: Any = None

    def attach(self, model: Any) -> None:
        self.config = model.config

    def max_tokens(self) -> int:
        """Most tokens that the model takes, special ones included."""
        limits = [self.tokenizer.model_max_length]
        positions = getattr(self.config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            # RoBERTa and its kin count positions from the padding index on.
            offset = _position_offset(self.config)
            limits.append(positions - offset)
        return int(min(limits))

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        limit = self.max_tokens()
        cut = {"max_length": limit} if parameters.get("truncation") else {}
        encoded = self.tokenizer(
            item, return_tensors="pt", truncation=bool(cut), **cut, **self.tokenizer_options
        )
        features = {name: encoded[name] for name in self.tokenizer.model_input_names}
        extras = {name: value for name, value in encoded.items() if name not in features}
        sample = Sample(features, extras)
        if sample.length == 0:
            raise InputError("The text has no tokens: it must not be empty.")
        if sample.length > limit:
            raise InputError(
                f"The text has {sample.length} tokens; this model takes at most {limit}. "
                'Shorten it, or send "truncation": true to cut it.'
            )
        return [sample]

    def probe(self, length: int) -> Sample:
        length = min(length, self.max_tokens())
        word = self.tokenizer.unk_token_id or self.tokenizer.pad_token_id or 0
        text = self.tokenizer("a", return_tensors="pt")
        # The features of a real input, its one word repeated to the wished length.
        return Sample(
            {
                name: _stretched(name, text[name], length, word)
                for name in self.tokenizer.model_input_names
            }
        )

    @property
    def padding(self) -> Mapping[str, int]:
        return {
            "input_ids": self.tokenizer.pad_token_id or 0,
            "token_type_ids": self.tokenizer.pad_token_type_id,
        }

    @property
    def pads(self) -> bool:
        return self.tokenizer.pad_token_id is not None

    @property
    def padding_side(self) -> str:
        return self.tokenizer.padding_side


def _position_offset(config: Any) -> int:
    families = {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer"}
    if getattr(config, "model_type", "") not in families:
        return 0
    return (getattr(config, "pad_token_id", None) or 0) + 1


def _stretched(name: str, value: "torch.Tensor", length: int, word: int) -> "torch.Tensor":
    import torch

    fill = {"input_ids": word, "attention_mask": 1}.get(name, 0)
    return torch.full((1, length), fill, dtype=value.dtype)


class PipelineStages(TextStages):
    """Results shaped by the transformers pipeline object itself.

    Only its postprocessing is used: its own preprocessing would truncate without a word.
    """

    pipeline: ClassVar[str]
    """Name of the transformers class."""

    def attach(self, model: Any) -> None:
        import transformers
        from transformers.pipelines.base import ChunkPipeline

        super().attach(model)
        self._pipe: Any = getattr(transformers, self.pipeline)(
            model=model, tokenizer=self.tokenizer, device=model.device
        )
        self._takes_chunks = isinstance(self._pipe, ChunkPipeline)

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The request's parameters as the pipeline's postprocessing names them."""
        return {name: value for name, value in parameters.items() if name != "truncation"}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        _, _, options = self._pipe._sanitize_parameters(**self.pipeline_parameters(parameters))
        given = [dict(output) for output in outputs]
        return self._pipe.postprocess(given if self._takes_chunks else given[0], **options)
