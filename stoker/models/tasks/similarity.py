"""Similarity between a sentence and other sentences.

config_sentence_transformers.json of the model names the measure. The default is the cosine of the
embeddings. For models with a vector per token, the default is the average, over the sentence's
tokens, of the largest cosine with a token of the other sentence.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from stoker.models.stages.embedding import Comparable
from stoker.models.tasks.base import NestedRequest, Task
from stoker.models.tasks.inputs import Truncation

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

MAX_SENTENCES = 1000

Sentence = Annotated[str, Field(min_length=1)]


class SimilarityRequest(NestedRequest):
    """Request for similarities. `inputs` is accepted too: an object with both fields."""

    source_sentence: Sentence = Field(
        description="Sentence that the other sentences are compared to."
    )
    sentences: list[Sentence] = Field(
        min_length=1, max_length=MAX_SENTENCES, description="The sentences to compare."
    )
    truncation: Truncation = False

    input_fields: ClassVar[tuple[str, ...]] = ("sentences", "source_sentence")

    def items(self) -> tuple[list[Any], bool]:
        return [self.source_sentence, *self.sentences], False

    def parameters(self) -> dict[str, Any]:
        return {"truncation": self.truncation, "compared": True}


def _similarities(_work: "Work", sentences: Sequence[Comparable]) -> list[float]:
    source, *candidates = sentences
    return [source.to(other) for other in candidates]


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
        "sentences": ["What is the way to bake bread?", "The train is late."],
    },
    example_result=[0.96, -0.02],
    finish=_similarities,
    place=_place,
)
