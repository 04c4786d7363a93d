"""Embeddings and similarities in the formats of Text Embeddings Inference."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, Field, RootModel, model_validator

from stoker.base.strict_json import Strict
from stoker.models.stages.embedding import Comparable, SparseVector
from stoker.models.tasks.base import Task, refusal
from stoker.models.tasks.other_servers.fields import EmbeddedInputs, PromptName, TruncatingRequest
from stoker.models.tasks.similarity import MAX_SENTENCES, Sentence

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

_EXAMPLE = {"inputs": ["How do I bake bread?", "The train is late."]}
_PIPELINE = "feature-extraction"


class EmbedAllRequest(TruncatingRequest):
    inputs: EmbeddedInputs
    prompt_name: PromptName = None

    makes: ClassVar[tuple[str, ...]] = ("dense", "multi")
    """Kinds of vectors that the answer can hold."""

    @model_validator(mode="after")
    def _prompted(self) -> Self:
        if self.prompt_name and not all(isinstance(item, str) for item in self.inputs):
            raise refusal(
                "cannot be put before token ids: send texts, or leave it out", "prompt_name"
            )
        return self

    def items(self) -> tuple[list[Any], bool]:
        return list(self.inputs), False

    def parameters(self) -> dict[str, Any]:
        named = {"prompt_name": self.prompt_name} if self.prompt_name else {}
        return super().parameters() | {"makes": self.makes, "unpooled": True} | named


class EmbedSparseRequest(EmbedAllRequest):
    makes = ("sparse",)

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | {"counted": True, "unpooled": False}


class EmbedRequest(EmbedAllRequest):
    normalize: bool = Field(default=True, description="Scale vectors to length one.")
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Number of dimensions to return, for models trained for it.",
    )

    makes = ("dense",)

    def parameters(self) -> dict[str, Any]:
        dimensions = {} if self.dimensions is None else {"dimensions": self.dimensions}
        return super().parameters() | {"normalize": self.normalize, "unpooled": False} | dimensions


class SimilarSentences(Strict):
    source_sentence: Sentence = Field(
        description="Sentence that the other sentences are compared to."
    )
    sentences: list[Sentence] = Field(
        min_length=1, max_length=MAX_SENTENCES, description="The sentences to compare."
    )


class SentencesRequest(TruncatingRequest):
    """Request for similarities. The options may be in `parameters`."""

    inputs: SimilarSentences
    prompt_name: PromptName = None

    def items(self) -> tuple[list[Any], bool]:
        return [self.inputs.source_sentence, *self.inputs.sentences], False

    def parameters(self) -> dict[str, Any]:
        named = {"prompt_name": self.prompt_name} if self.prompt_name else {}
        return super().parameters() | {"compared": True} | named


class Vectors(RootModel[list[list[float]]]):
    """A vector per input."""


class TokenVectors(RootModel[list[list[list[float]]]]):
    """The vectors of each input's tokens."""


class SparseValue(BaseModel):
    index: int
    value: float


class SparseVectors(RootModel[list[list[SparseValue]]]):
    """The nonzero values of each input's vector."""


class Similarities(RootModel[list[float]]):
    """The similarity of each sentence."""


def _sparse(_work: "Work", results: Sequence[tuple[SparseVector, int]]) -> Any:
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
        ]
        for vector, _ in results
    ]


def _similarities(_work: "Work", sentences: Sequence[Comparable]) -> list[float]:
    source, *candidates = sentences
    return [source.to(other) for other in candidates]


def _sentence(field: str, index: int) -> str:
    return f"{field}.sentences[{index - 1}]" if index else f"{field}.source_sentence"


EMBED = Task(
    pipeline=_PIPELINE,
    name="embed",
    path="/embed",
    summary="Embed texts",
    request=EmbedRequest,
    result=Vectors,
    example=_EXAMPLE,
)
EMBED_ALL = Task(
    pipeline=_PIPELINE,
    name="embed_all",
    path="/embed_all",
    summary="Embed the tokens of texts",
    request=EmbedAllRequest,
    result=TokenVectors,
    example=_EXAMPLE,
)
EMBED_SPARSE = Task(
    pipeline=_PIPELINE,
    also=("fill-mask",),
    name="embed_sparse",
    path="/embed_sparse",
    summary="Embed texts as sparse vectors",
    request=EmbedSparseRequest,
    result=SparseVectors,
    example=_EXAMPLE,
    finish=_sparse,
)
SIMILARITY = Task(
    pipeline=_PIPELINE,
    name="similarity_of_inputs",
    path="/similarity",
    summary="Compare sentences",
    request=SentencesRequest,
    result=Similarities,
    example={
        "inputs": {
            "source_sentence": "How do I bake bread?",
            "sentences": ["What is the way to bake bread?", "The train is late."],
        }
    },
    finish=_similarities,
    place=_sentence,
)
