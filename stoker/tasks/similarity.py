"""Similarity: how alike a sentence and others are, by the cosine of their embeddings.

Of models with a vector a token: for each token of the sentence, its largest cosine with one of the
other's, on average.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from stoker.stages.pooling import cosines, max_similarity
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


def _similarities(work: "Work", found: Sequence[Any]) -> list[float]:
    """Of vectors as `EmbeddingStages.listed` has them."""
    import torch

    if isinstance(found[0], dict):
        return _sparse_cosines(found)
    vectors = [torch.tensor(one) for one in found]
    if vectors[0].ndim == 1:
        return cosines(vectors[0], torch.stack(vectors[1:]))
    source = vectors[0]
    return [max_similarity(source, one) / max(len(source), 1) for one in vectors[1:]]


def _sparse_cosines(found: Sequence[Mapping[str, Sequence[Any]]]) -> list[float]:
    vectors = [dict(zip(one["indices"], one["values"], strict=True)) for one in found]
    source, norms = vectors[0], [math.hypot(*one.values()) for one in vectors]
    products = [
        math.fsum(value * source.get(at, 0.0) for at, value in one.items()) for one in vectors
    ]
    return [
        product / (norms[0] * norm) if norms[0] * norm else 0.0
        for product, norm in zip(products[1:], norms[1:], strict=True)
    ]


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
