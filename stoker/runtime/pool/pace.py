"""How long calls take that come to a queue, judged by the last ones that came to it."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

RATED = 64
"""Calls that are remembered."""
SOUND = 16
"""Calls that an estimate needs by which somebody is refused."""
RECENT_S = 60.0
"""So long a call tells something of the next: what was slow once must not be so for ever."""


class _Ended(NamedTuple):
    ahead: int
    seconds: float
    is_bounded: bool
    is_answered: bool
    at: float


class Pace:
    """A call takes as long as others did for each call that was there before it.

    That holds for queues. Where small calls pass large ones, some take much less: that is what
    `surely_s` allows for.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: deque[_Ended] = deque(maxlen=RATED)
        self._seconds: deque[float] = deque(maxlen=RATED)

    def answered(self, ahead: int, seconds: float, *, is_bounded: bool) -> None:
        """A call took so long that had come to so many others.

        Args:
            is_bounded: it would be given up after some time. Streams are not: they may take any.
        """
        self._add(_Ended(ahead, seconds, is_bounded, True, self._clock()))

    def given_up(self, ahead: int, seconds: float) -> None:
        """A call was not answered in so long."""
        self._add(_Ended(ahead, seconds, True, False, self._clock()))

    def _add(self, one: _Ended) -> None:
        self._ended.append(one)
        self._seconds.append(one.seconds)

    def forget(self) -> None:
        """Those who answer from now on are others."""
        self._ended.clear()
        self._seconds.clear()

    def takes_s(self, ahead: int) -> float:
        """How long a call takes that comes to so many others; a second where nothing is known."""
        ended = list(self._ended)
        found = _scaled([one for one in ended if one.ahead * 2 >= ahead] or ended, ahead)
        return found[len(found) // 2] if found else 1.0

    @property
    def most_s(self) -> float:
        """No estimate of `surely_s` is above this, which is had in a fraction of its time."""
        # Of calls that came to half as many others, or more.
        return 2 * max(self._seconds, default=0.0)

    def surely_s(self, ahead: int) -> float | None:
        """What nine of ten such calls take at least, in seconds.

        None where too few came lately to about as many others: batches let many calls take hardly
        longer than one.
        """
        since = self._clock() - RECENT_S
        ended = [
            one
            for one in self._ended
            if one.is_bounded and one.at >= since and ahead <= one.ahead * 2 <= ahead * 4
        ]
        return _scaled(ended, ahead)[len(ended) // 10] if len(ended) >= SOUND else None


def _scaled(ended: list[_Ended], ahead: int) -> list[float]:
    """Their times for a call that comes to `ahead` others, rising."""
    scales = [(ahead + 1) / (one.ahead + 1) for one in ended]
    # Nobody knows how long those would have taken that were given up.
    return sorted(
        one.seconds * (scale if one.is_answered else max(1.0, scale))
        for one, scale in zip(ended, scales, strict=True)
    )
