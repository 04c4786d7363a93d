"""Histograms in Prometheus' format."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import utils

_utils: Any = utils

Buckets = Sequence[tuple[str, float]]
"""Pairs of an upper bound as text and the number of observations up to it. The last bound is
`+Inf`.
"""


class Histogram:
    """Histogram without locks and labels. The histogram of prometheus_client takes a lock and looks
    up its labels for each observation.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def counts(self) -> list[int]:
        """Number of observations per bucket."""
        return self._counts.copy()

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Adds the observations of another histogram with the same bounds."""
        self._counts = [mine + more for mine, more in zip(self._counts, counts, strict=True)]
        self.total += total

    @property
    def buckets(self) -> Buckets:
        return buckets(self._bounds, self._counts)


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> Buckets:
    names: list[str] = [_utils.floatToGoString(bound) for bound in (*bounds, float("inf"))]
    return list(zip(names, accumulate(counts), strict=True))
