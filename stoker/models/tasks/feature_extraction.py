"""Feature extraction: a vector per text, pooled by the model's own configuration, or a vector per
token.
"""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from stoker.models.stages.base import Sample
from stoker.models.stages.embedding import EmbeddingStages, wrong_dimensions
from stoker.models.stages.encoders import CLASSES, encoder_of
from stoker.models.stages.late_interaction import STANFORD
from stoker.models.stages.multi_vectors import MultiVectorStages
from stoker.models.stages.pooling import SentenceHead, described_folder
from stoker.models.stages.similarity import COSINE, VECTORS, measure
from stoker.models.stages.sparse import SparseStages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import Task, TaskRequest, refusal
from stoker.models.tasks.inputs import TextInputs, Truncation

if TYPE_CHECKING:
    import torch

HOST = "cpu"
"""Type of the device that computes results from outputs."""
POOLED = "pooled"
"""Name of the pooled vectors among the outputs of a pass."""
UNPOOLED = "unpooled"
"""`Sample.call` of samples with a vector per token, and the parameter that requests them."""


class FeatureExtractionRequest(TaskRequest):
    """Request for features. It accepts the fields of Text Embeddings Inference."""

    inputs: TextInputs
    truncation: Truncation = False
    truncate: bool | None = Field(default=None, description="Another name for `truncation`.")
    truncation_direction: Literal["right"] | None = Field(
        default=None, description="Truncation removes the end."
    )
    normalize: bool | None = Field(
        default=None,
        description="Scale vectors to length one. Default: the model's own setting.",
    )
    prompt_name: str | None = Field(
        default=None,
        max_length=128,
        description=(
            "Name of the model's prompt that is put before the texts, such as `query`. "
            "Default: the model's default prompt."
        ),
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Number of dimensions to return, for models trained for it.",
    )
    encoding_format: Literal["float"] | None = Field(
        default=None, description="Use `/v1/embeddings` for base64."
    )

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if self.truncate is not None and "truncation" in self.model_fields_set:
            raise refusal("is given twice: it is another name for 'truncation'", "truncate")
        return self

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters that the replica's stages receive with each text."""
        options = {
            "normalize": self.normalize,
            "prompt_name": self.prompt_name,
            "dimensions": self.dimensions,
        }
        return {"truncation": self.truncation or bool(self.truncate)} | {
            name: value for name, value in options.items() if value is not None
        }


class FeatureExtractionStages(EmbeddingStages):
    """Stages of models with one dense vector per text."""

    auto_class = "AutoModel"
    per_token = ("last_hidden_state",)
    vectors = "dense"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._head = SentenceHead.of(folder)
        self.about = self._head.about
        self._device = HOST

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._device = model.device.type

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        samples = super().preprocess(item, parameters)
        if parameters.get(UNPOOLED) and self._device not in (HOST, "meta"):
            # Another `call` than that of samples that are pooled on the device. In main memory,
            # samples share batches and converted graphs.
            for sample in samples:
                sample.call = UNPOOLED
        return samples

    def loaders(self, config: Any) -> Sequence[str]:
        encoder_class = CLASSES.get(config.model_type)
        return (encoder_class,) if encoder_class else super().loaders(config)

    def part(self, model: Any) -> Any:
        return encoder_of(model)

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        outputs = super().run(model, call, batch)
        if self._head.layers and "hidden_states" in outputs:
            outputs = {"last_hidden_state": self._head.layers(outputs["hidden_states"])}
        if call == UNPOOLED or not self._pools_early(outputs["last_hidden_state"]):
            return outputs
        hidden, mask = outputs["last_hidden_state"].float(), batch["attention_mask"]
        # Vectors of padding may be NaN.
        hidden = hidden.masked_fill(mask.unsqueeze(-1) == 0, 0.0)
        return {POOLED: self._head.pool(hidden, mask)}

    def _pools_early(self, hidden: "torch.Tensor") -> bool:
        """Returns True if vectors are pooled on the device that computes them, so that only one
        vector per text is copied to main memory. Not possible if the tokens of prompts are
        excluded, because the device does not know them.
        """
        return (
            hidden.device.type != HOST
            and self._head.pools_padded_rows(self.padding_side)
            and (self.about.include_prompt or not self.about.prompts)
        )

    def plain(self, vector: "torch.Tensor") -> Any:
        return vector.numpy()

    def listed(self, vector: "torch.Tensor") -> Any:
        plain: Any = vector
        return plain.tolist()

    def score(self, query: "torch.Tensor", document: "torch.Tensor") -> float:
        return measure(self.about.similarity, VECTORS, COSINE)(query, document)

    def likeness(self, source: "torch.Tensor", other: "torch.Tensor") -> float:
        return self.score(source, other)

    def vector(self, output: Mapping[str, Any], parameters: Mapping[str, Any]) -> "torch.Tensor":
        if parameters.get(UNPOOLED):
            return self._head.token_vectors(output["last_hidden_state"].float())[0]
        normalize: bool | None = parameters.get("normalize")
        vector: Any = self._head.finish(self._pooled(output), normalize=normalize)[0]
        dimensions, default_dimensions = parameters.get("dimensions"), self.about.dimensions
        if default_dimensions and dimensions in (None, default_dimensions):
            # Vectors that the model's own configuration shortens are not normalised again, as in
            # sentence-transformers.
            return self._head.shortened(vector, default_dimensions, normalize=bool(normalize))
        if dimensions in (None, len(vector)):
            return vector
        self._check_dimensions(dimensions, len(vector))
        return self._head.shortened(vector, dimensions, normalize=normalize)

    def _pooled(self, output: Mapping[str, Any]) -> "torch.Tensor":
        if POOLED in output:
            return output[POOLED]
        mask = output["attention_mask"].clone()
        mask[:, : output.get("prompt_tokens", 0)] = 0
        return self._head.pool(output["last_hidden_state"].float(), mask)

    def _check_dimensions(self, wanted: int, full: int) -> None:
        """Raises `InputError` if the model cannot shorten its vectors to `wanted` dimensions.

        Matryoshka models list their dimensions in config.json, or only state there that they are
        Matryoshka models.
        """
        named: list[int] | None = getattr(self.config, "matryoshka_dimensions", None)
        if named is None and getattr(self.config, "is_matryoshka", False):
            named = list(range(1, full + 1))
        allowed = sorted({*(named or []), full})
        if wanted not in allowed:
            choices = f"1 to {full}" if len(allowed) == full else ", ".join(map(str, allowed))
            raise wrong_dimensions(f"This model's vectors can have these dimensions: {choices}.")


def _stages(folder: Path) -> EmbeddingStages:
    """Returns the stages for the kind of vectors that the model makes."""
    kinds = {"dense": FeatureExtractionStages, "sparse": SparseStages, "multi": MultiVectorStages}
    return kinds[described_folder(folder).kind](folder)


class SparseFeatures(TypedDict):
    """Nonzero values and their indices, from a model that makes sparse vectors."""

    indices: list[int]
    values: list[float]


TASK = Task(
    pipeline="feature-extraction",
    path="/v1/feature-extraction",
    summary="Extract features",
    request=FeatureExtractionRequest,
    # Types of models with one dense vector per text, with one per token, and with a sparse vector.
    result=list[float] | list[list[float]] | SparseFeatures,
    # A bare `…Model` has no other purpose. Models with any head have hidden states to pool.
    architectures=("*Model", "*For*", STANFORD, *PAGES),
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
    stages=_stages,
)
