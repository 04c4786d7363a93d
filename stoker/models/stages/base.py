"""Steps around a forward pass: they turn an input into samples, and outputs into a result.

The gateway imports this module through the task files, so torch and transformers are imported
inside functions.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from stoker.base.media_limits import MediaLimits
from stoker.media.media import Media
from stoker.models.stages.kinds import ModelKind
from stoker.wire.notices import Notice
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    import torch
    from openvino import CompiledModel

    from stoker.models.adapters.applying import LoadedAdapter

Decoded = TypeVar("Decoded")

_ELEMENTS_A_UNIT = 1024
"""Number of elements of a fixed-size feature that cost as much as a token: 224 by 224 pixels cost
147.
"""


INVALID = "is_invalid"
"""Name of an output that is True for samples whose other outputs were chosen from NaN or infinity.
"""


def bucket(length: int) -> int:
    """Returns a length rounded up, so that shapes repeat: oneDNN caches its kernels by shape."""
    step = 8 if length <= 64 else 16 if length <= 256 else 32
    return -(-length // step) * step


class InputError(Exception):
    """Raised if the client's input cannot be served. The message says what would be valid.

    `field` is the invalid field of the request. With `of_item`, the index of the item is appended
    to it.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "inputs",
        of_item: bool = True,
        code: str = "invalid_request",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.of_item = of_item
        self.code = code


class NoNumbersError(ValueError):
    """Raised if a result contains a NaN or an infinity."""


class ContextLengthError(InputError):
    """Raised if a prompt is longer than the model accepts. Clients then shorten their conversation.

    Clients recognise the error differently. Some check its code, and LiteLLM the first words of the
    message. LangChain searches the message for the code, because the exceptions of OpenAI's SDK
    contain nothing else.
    """

    def __init__(self, most: int, what: str, *, field: str, of_item: bool = False) -> None:
        """
        Args:
            most: Maximum number of tokens that the model accepts.
            what: Rest of the message: the numbers, and what would be valid.
        """
        code = "context_length_exceeded"
        super().__init__(
            f"This model's maximum context length is {most} tokens. However, {what} ({code})",
            field=field,
            of_item=of_item,
            code=code,
        )


@dataclass
class Sample:
    """One row of a forward pass."""

    features: "dict[str, torch.Tensor]"
    """Inputs of the model: tensors of shape (1, …)."""
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values that only postprocessing needs."""
    call: Hashable = ()
    """Options of `Stages.run` for the sample. Samples with different options never share a
    batch.
    """
    alone: bool = False
    """True if the sample never shares a batch."""
    adapter: "LoadedAdapter | None" = None
    """Adapter that the model applies to the sample. Samples with other adapters may share its
    batch.
    """
    is_held: bool = False
    """True if the sample waits for the first output of its input's first sample: see
    `Stages.released`.
    """


class StreamWriter(Protocol):
    """Writes the answer of one input in parts. Empty parts are not sent."""

    def begin(self, samples: Sequence[Sample]) -> bytes:
        """Returns the first part, after the input was accepted. Errors raised here reject the
        input, as in `preprocess`.
        """
        ...

    def partial(self, position: int, output: Mapping[str, Any]) -> bytes:
        """Returns the part for an unfinished sample's output so far (see `Watch.part`)."""
        ...

    def add(self, output: Mapping[str, Any]) -> bytes:
        """Returns the part for the next sample's output. Outputs arrive in the order of the
        samples.
        """
        ...

    def end(self) -> bytes:
        """Returns the part after the last output."""
        ...


class Steps(Protocol):
    """OpenVINO conversion of a model that `Stages.run` calls in many steps.

    The decisions between the steps are not exported: the stages make them for both engines.
    """

    def takes(self, call: Hashable) -> bool:
        """Returns True if the exported model can run samples with this `call`."""
        ...

    def export(self, model: Any, folder: Path) -> None:
        """Exports the parts that each step calls into a folder, as OpenVINO IRs."""
        ...

    def opened(self, compiled: "Callable[[str], CompiledModel]") -> Any:
        """Returns the replacement of the model for `Stages.run`. `compiled` returns an IR by its
        name.
        """
        ...

    def inputs(self, file: str, batch: "Mapping[str, torch.Tensor]") -> "Sequence[torch.Tensor]":
        """Returns the inputs of an IR for a batch of one, by which it may be quantized.

        Returns none if quantization is not worthwhile. Then only the IR's weights are rounded.
        """
        ...

    def retold(
        self, model: Any, batch: "Mapping[str, torch.Tensor]", found: Mapping[str, Any]
    ) -> "Mapping[str, torch.Tensor]":
        """Returns the outputs of a model, or its replacement, if it makes the decisions of `found`
        in each step.

        Without this, the outputs could no longer be compared after the first different word.
        """
        ...


class Stages(ABC):
    """Replica side of a task. One instance serves one model, from several threads in turn."""

    auto_class: ClassVar[str | tuple[str, ...]]
    """Names of the transformers classes that may load the model. The first that knows the model
    loads it.
    """
    kind: ClassVar[ModelKind | None] = None
    """Kind of computation of the model, if it differs within its pipeline. None means the
    pipeline's kind.
    """
    per_token: ClassVar[tuple[str, ...]] = ()
    """Outputs of shape (batch, padded length, …). Their rows of padding are removed."""
    padding: Mapping[str, int] = {}
    """Maps features of shape (1, length, …) that may be padded to their padding values.

    Other features must have the same shape to share a batch.
    """
    padding_side: str = "right"
    hides_tokens: bool = False
    """True if a sample's attention mask may exclude some of its tokens, which have outputs."""
    sharing: Sharing = Sharing.PADDED
    """How samples share batches. `stoker.models.engines.sharing` determines it."""
    notices: Sequence[Notice] = ()
    """Notices for the model's owner, once the model is attached."""
    embedded: int | None = None
    """Number of tokens that have a row in the model's embedding. None if the model reads no tokens
    or the number is unknown.
    """
    limits: MediaLimits = MediaLimits()
    attachments: int = 0
    """Number of times that a model was attached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Any = None
        self._last_decoded: tuple[Media, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last_decoded": None}

    def attach(self, model: Any) -> None:
        """Attaches the loaded model. Postprocessing needs its configuration."""
        self.attachments += 1
        self.config = model.config

    def loaders(self, config: Any) -> Sequence[str]:
        """Returns the names of the transformers classes that may load a model with this
        configuration.
        """
        return (self.auto_class,) if isinstance(self.auto_class, str) else self.auto_class

    def part(self, model: Any) -> Any:
        """Returns the part of the loaded model that is run."""
        return model

    @abstractmethod
    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        """Returns the samples of one input. Raises `InputError`."""

    def preprocess_item(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        """Returns the part of the samples of `preprocess` that depends only on the arguments.
        Raises `InputError`.

        Copies of the stages may run this in other processes. `completed` does the rest.
        """
        return self.preprocess(item, parameters)

    def completed(self, samples: list[Sample], parameters: Mapping[str, Any]) -> list[Sample]:
        """Returns the samples of `preprocess` from those of `preprocess_item`. It must be quick.
        Raises `InputError`.
        """
        return samples

    @abstractmethod
    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """Returns the result of one input, for `finish`, from the outputs of its samples in order.

        An output holds the sample's features and extras, and the model's outputs as CPU tensors of
        shape (1, …) without padding.
        """

    def following(self, output: Mapping[str, Any]) -> Sample | None:
        """Returns the sample that continues an output. None means that the output is the sample's
        last.

        The new sample replaces the first one. Its output must hold the results of both. Called on
        the engine's thread between two batches, so it must be quick.
        """
        return None

    def released(self, sample: Sample, first: Mapping[str, Any]) -> Sample:
        """Returns a held sample ready to run, based on the first output of its input's first
        sample.

        Called on the engine's thread between two batches, so it must be quick.
        """
        return sample

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        """Returns the processed amounts of a sample from its output, in the format of
        `RequestResult.counts`.
        """
        tokens = output.get("input_ids")
        return {} if tokens is None else {"input_tokens": tokens.shape[1]}

    def writer(
        self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]
    ) -> StreamWriter | None:
        """Returns a writer that streams the answer of one input. None means that the answer is sent
        whole.
        """
        return None

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        """Runs the model, or its replacement, on a batch of samples that have this `call`.

        Tensors with the batch as first dimension are split among the samples. Other values are
        passed to every sample.
        """
        return model(**batch)

    @property
    def steps(self) -> Steps | None:
        """Conversion of the model. None means that `run` is exported as one graph."""
        return None

    def probe(self, length: int, number: int = 0) -> Sample | None:
        """Returns a sample of about `length` tokens to measure the engine. None disables the
        measurement.

        Args:
            number: 0 for the simplest sample. Other numbers return samples of the same shape that
                resemble real inputs (`stoker.models.stages.specimens`).
        """
        return None

    def check(self, forward: Callable[[Sample], Mapping[str, Any]]) -> None:
        """Raises `ValueError` if a loaded model runs but cannot serve its task. Called once after
        loading.

        Args:
            forward: Runs the model on one sample.
        """
        return

    def length(self, sample: Sample) -> int:
        """Returns the length of the dimension that a batch pads, in tokens, or 0 if it pads
        none.
        """
        lengths = [v.shape[1] for name, v in sample.features.items() if name in self.padding]
        return max(lengths, default=0)

    def padded_length(self, longest: int) -> int:
        """Returns the padded length of a batch with a longest sample of `longest` tokens."""
        # Rounded up only if the batch is padded.
        is_padded = self.padding and self.sharing.is_padded
        return bucket(longest) if is_padded else longest

    def batch_key(self, sample: Sample) -> Hashable:
        """Returns the key that samples of one batch have in common."""
        if self.sharing is Sharing.ALONE:
            return object()
        is_padded = self.sharing.is_padded
        shapes = {
            name: None if is_padded and name in self.padding else value.shape
            for name, value in sample.features.items()
        }
        return (sample.call, frozenset(shapes.items()))

    def fixed_cost(self, sample: Sample) -> int:
        """Returns the cost of the features that are not padded, in tokens."""
        sizes = [v.numel() for name, v in sample.features.items() if name not in self.padding]
        return -(-sum(sizes) // _ELEMENTS_A_UNIT)

    def decoded(
        self, media: Media, decode: "Callable[[bytes | memoryview], Decoded]", field: str
    ) -> Decoded:
        """Returns decoded media. Neighbouring items that share media decode it once. Raises
        `InputError`.
        """
        from stoker.media.errors import MediaError

        if self._last_decoded is None or self._last_decoded[0] is not media:
            try:
                self._last_decoded = media, decode(media.content or b"")
            except MediaError as error:
                raise InputError(error.message, field=field, code="invalid_media") from error
        return self._last_decoded[1]


def by_kind(
    usual: Callable[[Path], Stages], kinds: Mapping[str, Callable[[Path], Stages]]
) -> Callable[[Path], Stages]:
    """Returns a builder that selects the stages by a folder's `model_type`, with `usual` as the
    default.
    """

    def stages(folder: Path) -> Stages:
        config = json.loads((folder / "config.json").read_bytes())
        return kinds.get(config.get("model_type"), usual)(folder)

    return stages
