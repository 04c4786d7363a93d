"""Sparse vectors with a number per vocabulary word, from models that predict masked tokens.

As in SPLADE: log(1 + relu(logit)) of each word at each token, and the maximum over the tokens
(Formal et al., "SPLADE v2", 2021, https://arxiv.org/abs/2109.10086). sentence-transformers' module
`SpladePooling` may change this.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages.embedding import EmbeddingStages, SparseVector, wrong_dimensions
from stoker.models.stages.pooling import described_folder
from stoker.models.stages.sentence_modules import Sentence
from stoker.models.stages.similarity import COSINE, DOT, VECTORS, measure

if TYPE_CHECKING:
    import torch


class SparseStages(EmbeddingStages):
    auto_class = "AutoModelForMaskedLM"
    per_token = ("logits",)
    vectors = "sparse"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.about = self.described(folder)

    def described(self, folder: Path) -> Sentence:
        return described_folder(folder)

    def vector(self, output: Mapping[str, Any], parameters: Mapping[str, Any]) -> SparseVector:
        import torch

        if parameters.get("dimensions") is not None:
            raise wrong_dimensions(
                "This model's vectors have one number for each word of its vocabulary."
            )
        logits = output["logits"][0].float()
        logits = logits[output["attention_mask"][0].bool()]
        splade = self.about.splade
        if splade.pooling == "max":
            # The logarithm keeps the order, so it is computed once per word instead of once per
            # token.
            weights = _weights(logits.amax(0), is_doubled=splade.is_doubled)
        else:
            weights = _weights(logits, is_doubled=splade.is_doubled).sum(0)
        if parameters.get("normalize"):
            weights = torch.nn.functional.normalize(weights, dim=0)
        indices = weights.nonzero()[:, 0]
        return SparseVector(indices, weights[indices])

    def plain(self, vector: SparseVector) -> SparseVector:
        return SparseVector(*(tensor.numpy() for tensor in vector))

    def listed(self, vector: SparseVector) -> dict[str, list[Any]]:
        return {name: tensor.tolist() for name, tensor in vector._asdict().items()}

    def score(self, query: SparseVector, document: SparseVector) -> float:
        return measure(self.about.similarity, VECTORS, DOT)(*_dense(query, document))

    def likeness(self, source: SparseVector, other: SparseVector) -> float:
        return measure(self.about.similarity, VECTORS, COSINE)(*_dense(source, other))


def _dense(*vectors: SparseVector) -> "list[torch.Tensor]":
    """Returns dense vectors with a number for each word up to the last one that any of them has."""
    import torch

    width = max(
        (int(vector.indices[-1]) + 1 for vector in vectors if len(vector.indices)), default=1
    )
    dense_vectors: list[torch.Tensor] = []
    for vector in vectors:
        numbers = torch.zeros(width)
        numbers[vector.indices] = vector.values
        dense_vectors.append(numbers)
    return dense_vectors


def _weights(logits: Any, *, is_doubled: bool) -> Any:
    weights = logits.relu().log1p()
    return weights.log1p() if is_doubled else weights
