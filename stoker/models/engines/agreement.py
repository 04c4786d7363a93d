"""Measures how far the answers of a rounded model agree with those of its original.

The largest difference says little: a number near zero may be far off in an answer that is as good
as before. So this module compares directions and the top labels.
"""

import math
from collections.abc import Mapping

import torch

from stoker.models.engines.probing import difference

LEAST_COSINE, LEAST_COSINE_OF_WEIGHTS = 0.98, 0.99
"""Minimum cosine of an answer with torch's: with activations in eight bits, and with only the
weights rounded.
"""
LEAST_LABELS = 0.98
"""Minimum share of clearly leading labels that stay on top."""
CLEAR = 0.1
"""Minimum lead of a clearly leading label, as a share of the output's largest number. The mean of
all labels is subtracted before.
"""
_LABELS: Mapping[str, int] = {
    "logits": -1,
    "start_logits": -1,
    "end_logits": -1,
    "class_queries_logits": -1,
}
"""Maps outputs in which the largest number counts to the dimension of that number."""
_PLACES = 4
"""Number of dimensions of `logits` for an image's positions. Their second dimension is the
classes.
"""
_LARGE = 64
"""Minimum size of an answer with its own direction. Smaller answers are compared together as
one.
"""


class Agreement:
    """Agreement of all answers that were compared so far."""

    def __init__(self, clear: float = CLEAR) -> None:
        """
        Args:
            clear: minimum lead of the labels that count. 0 counts all without an exact tie.
        """
        self._least_lead = clear
        self.difference = 0.0
        """Largest `probing.difference`. Infinite if an answer has another shape or is not a
        number.
        """
        self._cosine = 1.0
        self._small: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.clear = self.kept = 0
        """Number of compared labels, and of compared labels that stayed on top."""

    def add(self, ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
        """Adds two answers by the names of their outputs, both of shape (rows, …)."""
        if any(ours[name].shape != value.shape for name, value in theirs.items()):
            self.difference = math.inf
            return
        floats = {name: value for name, value in theirs.items() if value.is_floating_point()}
        # Values that are infinite in both, such as masked ones, have no direction.
        finite = {name: value.isfinite() for name, value in floats.items()}
        if any(not torch.equal(ours[name].isfinite(), tensor) for name, tensor in finite.items()):
            self.difference = math.inf
            return
        for name, value in floats.items():
            actual, known = (
                torch.where(finite[name], tensor, 0.0).double() for tensor in (ours[name], value)
            )
            self.difference = max(self.difference, difference({name: actual}, {name: known}))
            if name in _LABELS and value.dim() > 1:
                dimension = 1 if value.dim() == _PLACES else _LABELS[name]
                if value.shape[dimension] > 1:
                    # A value shared by all labels changes nothing, and would hide values that do.
                    actual, known = (
                        tensor - tensor.mean(dimension, keepdim=True) for tensor in (actual, known)
                    )
                    self._label(actual, known, dimension)
            self._direct(name, actual.reshape(len(actual), -1), known.reshape(len(known), -1))
        for name, value in theirs.items():
            if name not in floats:
                self.clear += value.numel()
                self.kept += int((ours[name] == value).sum())

    @property
    def cosine(self) -> float:
        """Least cosine of an answer with torch's. Small answers count together as one answer."""
        together = (
            _cosine(*(torch.cat(answers, 1) for answers in zip(*pairs, strict=True)))
            for pairs in self._small.values()
        )
        return min(self._cosine, *together, 1.0)

    @property
    def labels(self) -> float:
        """Share of clearly leading labels that stayed on top."""
        return self.kept / self.clear if self.clear else 1.0

    def _direct(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        if ours.shape[1] >= _LARGE:
            self._cosine = min(self._cosine, _cosine(ours, theirs))
        elif ours.numel():
            rows = (answer.reshape(1, -1) for answer in (ours, theirs))
            self._small.setdefault(name, []).append((next(rows), next(rows)))

    def _label(self, ours: torch.Tensor, theirs: torch.Tensor, dimension: int) -> None:
        if not theirs.numel():
            return
        first, second = theirs.topk(2, dimension).values.unbind(dimension)
        clear = first - second > self._least_lead * theirs.abs().max()
        same = ours.argmax(dimension) == theirs.argmax(dimension)
        self.clear += int(clear.sum())
        self.kept += int((clear & same).sum())


def _cosine(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Returns the least cosine of all rows. Two zero rows count as equal."""
    size = (ours.square().sum(1) * theirs.square().sum(1)).sqrt()
    nothing = ours.square().sum(1) + theirs.square().sum(1) == 0
    cosines = (ours * theirs).sum(1) / torch.where(nothing, 1.0, size)
    return float(torch.where(nothing, 1.0, cosines).min())
