"""Decides when preparation processes pay off, and how many."""

import math
import time
from collections.abc import Callable

from stoker.replica.mean_time import MeanTime

SLOW_S = 0.001
"""Minimum mean time of one item in seconds for which another process pays off."""
WINDOW_S = 5.0
"""Seconds after which processes without use end."""


class PreparationDemand:
    """Mean time of a preparation, and the largest number of items at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._time = MeanTime()
        self._peak = 0
        self._window_ends = clock() + WINDOW_S

    def took(self, seconds: float) -> None:
        """Records the duration of a preparation."""
        self._time.took(seconds)

    @property
    def is_slow(self) -> bool:
        return self._time.is_above(SLOW_S)

    @property
    def is_quick(self) -> bool:
        return self._time.is_quick

    def saw(self, items: int) -> None:
        """Records the number of items that are prepared or wait for it."""
        self._peak = max(self._peak, items)

    def needed(self, processes: int) -> int:
        """Returns how many of these processes to keep. Once per window, those without use are
        subtracted.
        """
        if self._clock() < self._window_ends:
            return processes
        self._window_ends = self._clock() + WINDOW_S
        peak, self._peak = self._peak, 0
        # A single item at a time is prepared as fast by the replica itself.
        return min(processes, peak) if peak > 1 and self.is_slow else 0

    @property
    def wait_s(self) -> float:
        """Seconds until the end of the window."""
        return max(0.0, self._window_ends - self._clock())


class Turnover:
    """Delay before another start after failed ones. Doubles with each failure in a row."""

    FIRST_S, MOST_S = 1.0, 300.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._next_at = -math.inf

    @property
    def is_allowed(self) -> bool:
        return self._clock() >= self._next_at

    def failed(self) -> None:
        delay_s = min(self.MOST_S, self.FIRST_S * 2**self._failures)
        self._failures += 1
        self._next_at = self._clock() + delay_s

    def succeeded(self) -> None:
        self._failures, self._next_at = 0, -math.inf
