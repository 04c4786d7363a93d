"""How long calls take that come to a queue, judged by the last ones that came to it."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

WINDOW = 64
"""Calls that are remembered, the latest."""
MIN_SAMPLES = 16
"""Calls that an estimate needs before a call is refused by it."""
MAX_AGE_S = 60.0
"""Seconds that a call counts in that estimate: what was slow once must not be so for ever."""


class _Sample(NamedTuple):
    ahead: int
    seconds: float
    is_bounded: bool
    is_answered: bool
    at: float


class Pace:
    """A call takes as long as others did for each call that was there before it.

    That holds for queues. Where small calls pass large ones, some take much less: that is what
    `p10_s`, a low estimate, allows for.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: deque[_Sample] = deque(maxlen=WINDOW)
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def answered(self, ahead: int, seconds: float, *, is_bounded: bool) -> None:
        """A call that came to `ahead` others was answered in `seconds`.

        Args:
            is_bounded: it would be given up after some time. Streams are not: they may take any.
        """
        self._add(_Sample(ahead, seconds, is_bounded, True, self._clock()))

    def given_up(self, ahead: int, seconds: float) -> None:
        """A call that came to `ahead` others was not answered in `seconds`."""
        self._add(_Sample(ahead, seconds, True, False, self._clock()))

    def _add(self, one: _Sample) -> None:
        self._ended.append(one)
        self._seconds.append(one.seconds)

    def reset(self) -> None:
        """Other replicas answer from now on."""
        self._ended.clear()
        self._seconds.clear()

    def median_s(self, ahead: int) -> float:
        """The median of what a call takes that comes to so many others, in seconds; 1.0 where
        nothing is known.
        """
        ended = list(self._ended)
        found = _scaled([one for one in ended if one.ahead * 2 >= ahead] or ended, ahead)
        return found[len(found) // 2] if found else 1.0

    @property
    def max_p10_s(self) -> float:
        """No estimate of `p10_s` is above this, which is computed in a fraction of its time."""
        # Of calls that came to half as many others, or more.
        return 2 * max(self._seconds, default=0.0)

    def p10_s(self, ahead: int) -> float | None:
        """The 10th percentile: what nine of ten such calls take at least, in seconds.

        None where too few came lately to about as many others: batches let many calls take hardly
        longer than one.
        """
        since = self._clock() - MAX_AGE_S
        ended = [
            one
            for one in self._ended
            if one.is_bounded and one.at >= since and ahead <= one.ahead * 2 <= ahead * 4
        ]
        return _scaled(ended, ahead)[len(ended) // 10] if len(ended) >= MIN_SAMPLES else None


def _scaled(ended: list[_Sample], ahead: int) -> list[float]:
    """Their times for a call that comes to `ahead` others, rising."""
    scales = [(ahead + 1) / (one.ahead + 1) for one in ended]
    # How long an abandoned call would have taken is not known.
    return sorted(
        one.seconds * (scale if one.is_answered else max(1.0, scale))
        for one, scale in zip(ended, scales, strict=True)
    )
