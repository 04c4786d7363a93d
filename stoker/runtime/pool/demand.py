"""Estimates how often a deployment is called, to decide which replica gives its memory away."""

import math
from collections.abc import Callable

HALF_LIFE_S = 300.0
"""Seconds after which a call counts half."""


class Demand:
    """Calls per second of one deployment. Recent calls count more than earlier ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0.0
        """Calls, each halved after every half-life, at the time of the last call."""
        self._last = -math.inf

    def add(self) -> None:
        """Counts a call."""
        now = self._clock()
        self._count = self._count * _kept(now - self._last) + 1
        self._last = now

    @property
    def rate(self) -> float:
        """Calls per second, at most one in the time since the last call.

        The limit lets a deployment that was called often lose its rank once its calls end.
        """
        idle_s = self._clock() - self._last
        rate = self._count * _kept(idle_s) * math.log(2) / HALF_LIFE_S
        return min(rate, 1 / idle_s) if idle_s > 0 else rate


def _kept(seconds: float) -> float:
    """Returns the share of a call that still counts after a time."""
    return 0.5 ** (seconds / HALF_LIFE_S)
