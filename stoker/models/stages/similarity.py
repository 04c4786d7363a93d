"""Measures that compare two vectors. Higher is nearer.

Names and formulas follow sentence-transformers (`SimilarityFunction`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Measure = Callable[[torch.Tensor, torch.Tensor], float]

COSINE, DOT, MAX_SIM, MEAN_MAX_SIM = "cosine", "dot", "maxsim", "meanmaxsim"


def cosine(left: "torch.Tensor", right: "torch.Tensor") -> float:
    """Returns the cosine of two (features,) vectors, from -1 to 1."""
    import torch

    similarity: Any = torch.nn.functional.cosine_similarity(left, right, dim=0)
    return similarity.item()


def max_similarity(query: "torch.Tensor", document: "torch.Tensor") -> float:
    """Returns MaxSim: for each of a query's vectors the largest product with a document's vector,
    summed.
    """
    return float((query @ document.T).amax(1).sum()) if len(document) else 0.0


def _mean_max_similarity(query: "torch.Tensor", document: "torch.Tensor") -> float:
    return max_similarity(query, document) / max(len(query), 1)


VECTORS: "Mapping[str, Measure]" = {
    COSINE: cosine,
    DOT: lambda left, right: float(left @ right),
    "euclidean": lambda left, right: -float((left - right).square().sum().sqrt()),
    "manhattan": lambda left, right: -float((left - right).abs().sum()),
}
"""Measures of two (features,) vectors."""

TOKENS: "Mapping[str, Measure]" = {
    MAX_SIM: max_similarity,
    MEAN_MAX_SIM: _mean_max_similarity,
}
"""Measures of (query tokens, features) and (document tokens, features) vectors."""


def measure(named: str | None, known: "Mapping[str, Measure]", default: str) -> "Measure":
    """Returns the measure that a model names. Names outside `known` mean the default, as in
    sentence-transformers.
    """
    return known.get(named or default, known[default])
