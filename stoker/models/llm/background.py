"""Limits how much background sequences prolong the steps of live sequences."""

import math
import time
from collections.abc import Callable

from stoker.models.llm.speculation import PassDurations

SHARE = 0.1
"""Maximum part by which background sequences may prolong a step with live ones."""
LIVE_S = 2.0
"""Seconds after a step with live sequences for which steps without them are kept short."""
MOST_STEPS = 2
"""Maximum duration of such a short step, in steps of the latest live sequences."""


class BackgroundShare:
    """Chooses the number of background tokens of a step by the measured durations of steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._durations = PassDurations()
        self._live_width = 0
        """Number of live tokens in the latest step that had any."""
        self._live_until = -math.inf

    def forget(self) -> None:
        """Deletes the durations of a runner that is no longer used."""
        self._durations = PassDurations()

    def passed(self, width: int, live_width: int, seconds: float) -> None:
        """Records a step.

        Args:
            width: number of its tokens.
            live_width: number of its tokens of live sequences.
            seconds: its duration.
        """
        self._durations.note(width, seconds)
        if live_width:
            self._live_width = live_width
            self._live_until = self._clock() + LIVE_S

    def room(self, live_width: int, most: int) -> int:
        """Returns the maximum number of background tokens in a step.

        Args:
            live_width: number of tokens of live sequences in the step.
            most: maximum number of tokens that the step has room for.
        """
        if live_width:
            return self._within(live_width, most, (1 + SHARE) * self._seconds(live_width))
        if self._clock() < self._live_until:
            limit_s = MOST_STEPS * self._seconds(self._live_width)
            return max(min(most, 1), self._within(0, most, limit_s))
        return most

    def _within(self, width: int, most: int, limit_s: float) -> int:
        """Returns a number of further tokens with which a step takes at most `limit_s` seconds: 0,
        `most` or a power of two.
        """
        room, tried = 0, min(1, most)
        while tried > room and self._seconds(width + tried) <= limit_s:
            room, tried = tried, min(2 * tried, most)
        return room

    def _seconds(self, width: int) -> float:
        """Returns the duration of a step. Infinite before the first measurement."""
        return self._durations.of(width) if self._durations.is_measured else math.inf
