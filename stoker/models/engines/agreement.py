"""How far the answers of a model that was rounded agree with those of the one that it was made of.

The largest difference says little of it: a number that was near nothing may be far off in an answer
that is as good as before. So it is directions that are compared, and what comes out on top.
"""

import math
from collections.abc import Mapping

import torch

from stoker.models.engines.probing import difference

LEAST_COSINE, LEAST_COSINE_OF_WEIGHTS = 0.98, 0.99
"""Of an answer with torch's, with activations in eight bits and with the weights alone."""
LEAST_LABELS = 0.98
"""The share of labels that have to stay on top, of those that led clearly."""
CLEAR = 0.1
"""What a label leads by where it leads clearly, as a share of the output's largest number. What all
labels have in common is taken off before.
"""
_LABELS: Mapping[str, int] = {
    "logits": -1,
    "start_logits": -1,
    "end_logits": -1,
    "class_queries_logits": -1,
}
"""Outputs of which the largest number is what counts → the dimension along which it is."""
_PLACES = 4
"""`logits` of so many dimensions are of an image's places, and the classes are the second one."""
_LARGE = 64
"""Numbers of an answer that has a direction of its own; smaller ones have one all together."""


class Agreement:
    """Of all answers that were compared so far."""

    def __init__(self) -> None:
        self.difference = 0.0
        """As `probing.difference`; infinite where an answer is of another shape, or no number."""
        self._cosine = 1.0
        self._small: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._clear = self._kept = 0

    def add(self, ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
        """Both of shape (rows, …), by the names of outputs."""
        if any(ours[name].shape != value.shape for name, value in theirs.items()):
            self.difference = math.inf
            return
        floats = {name: value for name, value in theirs.items() if value.is_floating_point()}
        # What is infinite in both, such as what a model masks, has no direction.
        finite = {name: value.isfinite() for name, value in floats.items()}
        if any(not torch.equal(ours[name].isfinite(), one) for name, one in finite.items()):
            self.difference = math.inf
            return
        for name, value in floats.items():
            own, known = (
                torch.where(finite[name], one, 0.0).double() for one in (ours[name], value)
            )
            self.difference = max(self.difference, difference({name: own}, {name: known}))
            if name in _LABELS and value.dim() > 1:
                dimension = 1 if value.dim() == _PLACES else _LABELS[name]
                if value.shape[dimension] > 1:
                    # What all labels have more of changes nothing, and would hide what does.
                    own, known = (one - one.mean(dimension, keepdim=True) for one in (own, known))
                    self._label(own, known, dimension)
            self._direct(name, own.reshape(len(own), -1), known.reshape(len(known), -1))
        for name, value in theirs.items():
            if name not in floats:
                self._clear += value.numel()
                self._kept += int((ours[name] == value).sum())

    @property
    def cosine(self) -> float:
        """The least one of an answer with torch's; of small answers that of all of them, as one."""
        together = (
            _cosine(*(torch.cat(one, 1) for one in zip(*pairs, strict=True)))
            for pairs in self._small.values()
        )
        return min(self._cosine, *together, 1.0)

    @property
    def labels(self) -> float:
        """The share of labels that stayed on top, of those that led clearly."""
        return self._kept / self._clear if self._clear else 1.0

    def _direct(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        if ours.shape[1] >= _LARGE:
            self._cosine = min(self._cosine, _cosine(ours, theirs))
        elif ours.numel():
            rows = (one.reshape(1, -1) for one in (ours, theirs))
            self._small.setdefault(name, []).append((next(rows), next(rows)))

    def _label(self, ours: torch.Tensor, theirs: torch.Tensor, dimension: int) -> None:
        if not theirs.numel():
            return
        first, second = theirs.topk(2, dimension).values.unbind(dimension)
        clear = first - second > CLEAR * theirs.abs().max()
        same = ours.argmax(dimension) == theirs.argmax(dimension)
        self._clear += int(clear.sum())
        self._kept += int((clear & same).sum())


def _cosine(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The least of all rows; two that are nothing are alike."""
    size = (ours.square().sum(1) * theirs.square().sum(1)).sqrt()
    nothing = ours.square().sum(1) + theirs.square().sum(1) == 0
    found = (ours * theirs).sum(1) / torch.where(nothing, 1.0, size)
    return float(torch.where(nothing, 1.0, found).min())
