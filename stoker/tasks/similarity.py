"""Similarity: how alike a sentence and others are, by the cosine of their embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from stoker.stages.pooling import cosines
from stoker.tasks.base import NestedRequest, Task
from stoker.tasks.inputs import Truncation

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

MAX_SENTENCES = 1000

Sentence = Annotated[str, Field(min_length=1)]


class SimilarityRequest(NestedRequest):
    """Also taken as `inputs`, an object with both fields."""

    source_sentence: Sentence = Field(description="The sentence that the others are compared to.")
    sentences: list[Sentence] = Field(
        min_length=1, max_length=MAX_SENTENCES, description="The sentences to compare."
    )
    truncation: Truncation = False

    input_fields: ClassVar[tuple[str, ...]] = ("sentences", "source_sentence")

    def items(self) -> tuple[list[Any], bool]:
        return [self.source_sentence, *self.sentences], False


def _similarities(work: "Work", vectors: Sequence[Sequence[float]]) -> list[float]:
    return cosines(vectors[0], vectors[1:])


def _place(field: str, index: int) -> str:
    return f"sentences[{index - 1}]" if index else "source_sentence"


TASK = Task(
    pipeline="feature-extraction",
    name="similarity",
    path="/v1/similarity",
    summary="Compare sentences",
    request=SimilarityRequest,
    result=list[float],
    whole=True,
    families=("bert",),
    example={
        "source_sentence": "How do I bake bread?",
        "sentences": ["A recipe for a loaf.", "The trains were late."],
    },
    example_result=[0.71, 0.08],
    finish=_similarities,
    place=_place,
)
