"""Limits how much background sequences prolong the steps of live sequences."""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median

SHARE = 0.1
"""Maximum part by which background sequences may prolong a step with live ones."""
LIVE_S = 2.0
"""Seconds after a step with live sequences for which steps without them are kept short."""
MOST_STEPS = 2
"""Maximum duration of such a short step, in steps of the latest live sequences."""
MOST_PAUSE = 4
"""Maximum duration of a pause for the next live sequence, in steps of the latest live sequences."""
GAPS, _LEAST_GAPS = 8, 3
"""Number of gaps between live steps that are remembered, and that a pause needs."""
_LEAST_GAP = 0.25
"""Minimum duration of a gap in steps. Shorter times lie between two steps of a sequence."""
WIDTHS = 32
"""Maximum number of further tokens of a step that is measured. Wider ones compute prompts."""
_KEPT = 0.99
"""Part of the weight that a measured step keeps when another one is measured."""
_OUTLIER = 3.0
"""Maximum ratio of a measured duration to the mean. The machine may have been busy otherwise."""
_LEAST_STEPS, _LEAST_VARIANCE = 4.0, 0.02
"""Weight and variance of widths from which on the measurements tell the time of a token."""


class StepTimes:
    """Duration of recent steps as a linear function of their tokens."""

    def __init__(self) -> None:
        self._weight = self._width = self._seconds = 0.0
        self._squares = self._products = 0.0

    def note(self, width: int, seconds: float) -> None:
        if self._weight:
            seconds = min(seconds, _OUTLIER * self._seconds / self._weight)
        self._weight = self._weight * _KEPT + 1
        self._width = self._width * _KEPT + width
        self._seconds = self._seconds * _KEPT + seconds
        self._squares = self._squares * _KEPT + width * width
        self._products = self._products * _KEPT + width * seconds

    @property
    def is_measured(self) -> bool:
        return self._weight >= _LEAST_STEPS

    @property
    def token_s(self) -> float | None:
        """Seconds of one more token. None if all steps had the same width."""
        mean = self._width / self._weight
        variance = self._squares / self._weight - mean * mean
        if variance < _LEAST_VARIANCE:
            return None
        shared = self._products / self._weight - mean * self._seconds / self._weight
        return max(0.0, shared / variance)

    def of(self, width: int) -> float:
        """Returns the seconds of a step."""
        further = width - self._width / self._weight
        return max(0.0, self._seconds / self._weight + further * (self.token_s or 0.0))


class BackgroundShare:
    """Chooses the number of background tokens of a step by the measured durations of steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._times = StepTimes()
        self._joined = 0
        """Number of background tokens in the latest step with live ones."""
        self._live_width = 0
        """Number of live tokens in the latest step that had any."""
        self._live_until = -math.inf
        self._live_end = -math.inf
        """End of the latest step with live tokens."""
        self._gaps = deque[float](maxlen=GAPS)
        """Seconds without a live step between two live ones."""

    def forget(self) -> None:
        """Deletes the durations of a runner that is no longer used."""
        self._times = StepTimes()

    def passed(self, width: int, live_width: int, seconds: float) -> None:
        """Records a step.

        Args:
            width: number of its tokens.
            live_width: number of its tokens of live sequences.
            seconds: its duration.
        """
        if live_width:
            now = self._clock()
            gap = now - seconds - self._live_end
            if self._times.is_measured and gap > _LEAST_GAP * self._times.of(live_width):
                self._gaps.append(gap)
            self._joined = width - live_width
            self._live_width = live_width
            self._live_until = now + LIVE_S
            self._live_end = now
        if width <= self._live_width + WIDTHS:
            self._times.note(width, seconds)

    @property
    def pause_s(self) -> float:
        """Seconds for which steps without live sequences should wait for the next live one.

        A client that calls again as soon as it has an answer would otherwise wait for the end of a
        background step. This is the anticipatory scheduling of disks (Iyer and Druschel, 2001).
        """
        if len(self._gaps) < _LEAST_GAPS or not self._times.is_measured:
            return 0.0
        expected_s = median(self._gaps)
        most_s = MOST_PAUSE * self._times.of(self._live_width)
        if expected_s > most_s:
            return 0.0
        return max(0.0, self._live_end + min(2 * expected_s, most_s) - self._clock())

    def room(self, live_width: int, most: int) -> int:
        """Returns the maximum number of background tokens in a step.

        Args:
            live_width: number of tokens of live sequences in the step.
            most: maximum number of tokens that the step has room for.
        """
        if live_width:
            # The room grows step by step, because a wide step may take longer than predicted.
            return min(self._within(SHARE, live_width), 2 * self._joined + 1, most)
        if self._clock() < self._live_until:
            further = self._within(MOST_STEPS - 1, self._live_width)
            return min(self._live_width + further, most)
        return most

    def _within(self, share: float, width: int) -> int:
        """Returns the number of tokens that prolong a step of `width` tokens by a share."""
        if not self._times.is_measured:
            return 0
        token_s = self._times.token_s
        if token_s is None:
            return 1
        return min(WIDTHS, int(share * self._times.of(width) / token_s)) if token_s else WIDTHS
