"""Estimates the duration of queued calls from the last calls of the queue."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

WINDOW = 64
"""Number of most recent calls that are stored."""
MIN_SAMPLES = 16
"""Minimum number of samples for an estimate that rejects calls."""
MAX_AGE_S = 60.0
"""Maximum age in seconds of a sample for that estimate. A slow period must not affect later calls
forever.
"""


class _Sample(NamedTuple):
    ahead: int
    seconds: float
    is_bounded: bool
    is_answered: bool
    at: float


class Pace:
    """Estimates durations in proportion to the number of calls ahead.

    This holds for queues. If small calls overtake large ones, some calls are much faster. `p10_s`
    is a low estimate to allow for that.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: deque[_Sample] = deque(maxlen=WINDOW)
        self._longest_s = 0.0
        """Duration of the longest sample."""

    def answered(self, ahead: int, seconds: float, *, is_bounded: bool) -> None:
        """Records a call that was answered in `seconds` after `ahead` other calls.

        Args:
            is_bounded: the call has a time limit. Streams have none.
        """
        self._add(_Sample(ahead, seconds, is_bounded, True, self._clock()))

    def given_up(self, ahead: int, seconds: float) -> None:
        """Records a call that was not answered in `seconds` after `ahead` other calls."""
        self._add(_Sample(ahead, seconds, True, False, self._clock()))

    def _add(self, sample: _Sample) -> None:
        is_longest_lost = len(self._ended) == WINDOW and self._ended[0].seconds >= self._longest_s
        self._ended.append(sample)
        if sample.seconds >= self._longest_s:
            self._longest_s = sample.seconds
        elif is_longest_lost:
            self._longest_s = max(kept.seconds for kept in self._ended)

    def reset(self) -> None:
        """Clears all samples, because other replicas answer from now on."""
        self._ended.clear()
        self._longest_s = 0.0

    def median_s(self, ahead: int) -> float:
        """Returns the median duration in seconds of a call with `ahead` calls before it. 1.0 if
        nothing is known.
        """
        ended = list(self._ended)
        durations = _scaled(
            [sample for sample in ended if sample.ahead * 2 >= ahead] or ended, ahead
        )
        return durations[len(durations) // 2] if durations else 1.0

    @property
    def max_p10_s(self) -> float:
        """Upper bound of all `p10_s` estimates. Computed in a fraction of their time."""
        # `p10_s` uses calls with at least half as many calls ahead, so it scales their times by at
        # most 2.
        return 2 * self._longest_s

    def p10_s(self, ahead: int) -> float | None:
        """Returns the 10th percentile in seconds: nine of ten such calls take at least this long.

        None if too few recent calls had a similar number of calls ahead. With batches, many calls
        take hardly longer than one.
        """
        since = self._clock() - MAX_AGE_S
        ended = [
            sample
            for sample in self._ended
            if sample.is_bounded and sample.at >= since and ahead <= sample.ahead * 2 <= ahead * 4
        ]
        return _scaled(ended, ahead)[len(ended) // 10] if len(ended) >= MIN_SAMPLES else None


def _scaled(ended: list[_Sample], ahead: int) -> list[float]:
    """Returns the samples' times, scaled to a call with `ahead` calls before it, in ascending
    order.
    """
    scales = [(ahead + 1) / (sample.ahead + 1) for sample in ended]
    # The full duration of an abandoned call is unknown.
    return sorted(
        sample.seconds * (scale if sample.is_answered else max(1.0, scale))
        for sample, scale in zip(ended, scales, strict=True)
    )
