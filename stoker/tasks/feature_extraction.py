"""Feature extraction: one vector a text, pooled as the model itself says."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field, model_validator

from stoker.stages.base import ContextLengthError, InputError, Sample
from stoker.stages.encoders import CLASSES, encoder_of
from stoker.stages.pooling import SentenceHead, cosines
from stoker.stages.text import TextStages
from stoker.tasks.architectures import PAGES
from stoker.tasks.base import Task, TaskRequest, refusal
from stoker.tasks.inputs import TextInputs, Truncation

if TYPE_CHECKING:
    import torch


class FeatureExtractionRequest(TaskRequest):
    """With the fields that Text Embeddings Inference takes."""

    inputs: TextInputs
    truncation: Truncation = False
    truncate: bool | None = Field(default=None, description="Another name of `truncation`.")
    truncation_direction: Literal["right"] | None = Field(
        default=None, description="What is cut off is the end."
    )
    normalize: bool | None = Field(
        default=None,
        description="Whether vectors are made as long as one; default: as the model has it.",
    )
    prompt_name: str | None = Field(
        default=None,
        max_length=128,
        description="Which of the model's own prompts precedes the texts, such as `query`; "
        "default: the model's default.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="How many of the vector's leading numbers to return, of models trained for it.",
    )
    encoding_format: Literal["float"] | None = Field(
        default=None, description="`/v1/embeddings` gives base64, too."
    )

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if self.truncate is not None and "truncation" in self.model_fields_set:
            raise refusal("is given twice: 'truncation' is the same", "truncate")
        return self

    def parameters(self) -> dict[str, Any]:
        """What the replica's stages get beside a text."""
        given = {
            "normalize": self.normalize,
            "prompt_name": self.prompt_name,
            "dimensions": self.dimensions,
        }
        return {"truncation": self.truncation or bool(self.truncate)} | {
            name: value for name, value in given.items() if value is not None
        }


class FeatureExtractionStages(TextStages):
    """Items of the rerank endpoint are objects with `query` and `document`."""

    auto_class = "AutoModel"
    per_token = ("last_hidden_state",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._head = SentenceHead.of(folder)
        self._counted: dict[str, int] = {}

    def loaders(self, config: Any) -> Sequence[str]:
        own = CLASSES.get(config.model_type)
        return (own,) if own else super().loaders(config)

    def part(self, model: Any) -> Any:
        return encoder_of(model)

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        outputs = super().run(model, call, batch)
        if self._head.layers and "hidden_states" in outputs:
            return {"last_hidden_state": self._head.layers(outputs["hidden_states"])}
        return outputs

    def max_tokens(self) -> int:
        return min(super().max_tokens(), self._head.about.max_tokens or super().max_tokens())

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        field = parameters.get("field", "inputs")
        if not isinstance(item, dict):
            return [self._text(item, parameters, field)]
        given = cast("dict[str, Any]", item)
        if "image" in given:
            raise InputError("This model embeds texts, and no images.", field=field)
        if "tokens" in given:
            return [self._token_sample(given["tokens"], parameters, field)]
        return [
            self._text(given["query"], parameters, "query", of_item=False),
            self._text(
                given["document"],
                parameters,
                "documents",
                most=parameters.get("max_tokens_per_doc"),
            ),
        ]

    def _text(
        self,
        text: str,
        parameters: Mapping[str, Any],
        field: str,
        *,
        of_item: bool = True,
        most: int | None = None,
    ) -> Sample:
        prompt = self._prompt(parameters)
        prepared = self._head.prepare(text, prompt)
        truncation = bool(parameters.get("truncation"))
        try:
            sample = self.text_sample(prepared, truncation=truncation, most=most, field=field)
        except InputError as error:
            error.field, error.of_item = field, of_item
            raise
        sample.extras["prompt_tokens"] = self._prompt_tokens(prompt)
        return sample

    def too_long(self, length: int, limit: int, field: str = "inputs") -> InputError:
        if field != "input":
            return super().too_long(length, limit, field)
        # Of OpenAI's convention: its clients know it by other words. Some look for those in a body
        # that Python has printed, where both kinds of quotes in one text would escape "model's".
        advice = "Shorten it, or send 'truncation': true to cut it."
        what = f"your input resulted in {length} tokens. {advice}"
        return ContextLengthError(limit, what, field=field, of_item=True)

    def _prompt_tokens(self, prompt: str) -> int:
        """See `SentenceHead.prompt_tokens`; a model has few prompts, and they stay the same."""
        if prompt not in self._counted:
            self._counted[prompt] = self._head.prompt_tokens(
                prompt, self.tokenizer, self.max_tokens()
            )
        return self._counted[prompt]

    def _prompt(self, parameters: Mapping[str, Any]) -> str:
        name, about = parameters.get("prompt_name"), self._head.about
        if name is None:
            return about.default_prompt
        if name not in about.prompts:
            known = ", ".join(f"'{one}'" for one in about.prompts) or "none"
            raise InputError(
                f"This model has no prompt '{name}'; it has {known}.",
                field="prompt_name",
                of_item=False,
            )
        return about.prompts[name]

    def _token_sample(self, tokens: list[int], parameters: Mapping[str, Any], field: str) -> Sample:
        import torch

        limit, size = self.max_tokens(), self.config.vocab_size
        if (highest := max(tokens)) >= size:
            raise InputError(
                f"There is no token {highest}: this model's token ids are below {size}.",
                field=field,
            )
        if len(tokens) > limit and not parameters.get("truncation"):
            raise self.too_long(len(tokens), limit, field)
        ids = torch.tensor([tokens[:limit]])
        features = {name: torch.zeros_like(ids) for name in self.tokenizer.model_input_names}
        return Sample(features | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """The vector of a text; the cosine of a query's and a document's, and their tokens' number.

        With the parameter `counted`: the vector as an array, and the number of tokens.
        """
        vectors = [self._vector(output, parameters) for output in outputs]
        tokens = sum(output["input_ids"].shape[1] for output in outputs)
        if parameters.get("counted"):
            return vectors[0].numpy(), tokens
        lists = [vector.tolist() for vector in vectors]
        return lists[0] if len(lists) == 1 else (cosines(lists[0], lists[1:])[0], tokens)

    def _vector(self, output: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        hidden = output["last_hidden_state"].float()
        mask = output["attention_mask"].clone()
        mask[:, : output.get("prompt_tokens", 0)] = 0
        normalize: bool | None = parameters.get("normalize")
        vector: Any = self._head.pool(hidden, mask, normalize=normalize)[0]
        wanted = parameters.get("dimensions")
        if wanted is None or wanted == len(vector):
            return vector
        self._check_dimensions(wanted, len(vector))
        return self._head.shortened(vector, wanted, normalize=normalize)

    def _check_dimensions(self, wanted: int, full: int) -> None:
        """Matryoshka models name their dimensions, or that they have them, in config.json."""
        named: list[int] | None = getattr(self.config, "matryoshka_dimensions", None)
        if named is None and getattr(self.config, "is_matryoshka", False):
            named = list(range(1, full + 1))
        allowed = sorted({*(named or []), full})
        if wanted not in allowed:
            choices = f"1 to {full}" if len(allowed) == full else ", ".join(map(str, allowed))
            raise InputError(
                f"This model's vectors can have these dimensions: {choices}.",
                field="dimensions",
                of_item=False,
            )


TASK = Task(
    pipeline="feature-extraction",
    path="/v1/feature-extraction",
    summary="Extract features",
    request=FeatureExtractionRequest,
    result=list[float],
    # A bare `…Model` is meant for nothing else; below any head there are hidden states to pool.
    architectures=("*Model", "*For*", *PAGES),
    families=(
        "bert",
        "blenderbot",
        "distilbert",
        "electra",
        "longt5",
        "m2m_100",
        "marian",
        "mt5",
        "pegasus",
        "roberta",
        "switch_transformers",
        "t5",
        "umt5",
    ),
    example={"inputs": "How do I bake bread?"},
    example_result=[0.021, -0.114, 0.087],
    stages=FeatureExtractionStages,
)
