"""Answer of a call in parts, and the replicas' reports about the call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.runtime.interface import OnProgress
from stoker.runtime.parts import AnswerParts

KEEP_ALIVE_S = 10.0
"""Seconds between keep-alives in a stream without other parts."""


@dataclass(eq=False)
class CallStats:
    """Counts and times in microseconds that replicas reported for a call, as in `RequestResult`."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    times: dict[str, int] = field(default_factory=dict[str, int])
    is_pending: bool = False
    """True if a replica still has to report the outcome of a cancelled call."""
    _callback: Callable[[], None] | None = None

    def expect_report(self) -> None:
        """Records that a replica still has to report the outcome of the cancelled call."""
        self.is_pending = True

    def when_complete(self, callback: Callable[[], None]) -> None:
        """Calls back when no more reports will arrive: immediately, or after the pending report."""
        if self.is_pending:
            self._callback = callback
        else:
            callback()

    def complete(self, counts: Mapping[str, int]) -> None:
        """Completes the stats of a cancelled call, with or without a report."""
        self.is_pending = False
        self.counts.update(counts)
        if self._callback:
            self._callback()


class ReplicaAnswer(AnswerParts):
    """Answer of a replica. The replica has no more work for it after it has ended."""

    def __init__(
        self,
        clock: Callable[[], float],
        stats: CallStats,
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__()
        self.stats = stats
        self.on_progress = on_progress
        self._clock = clock
        self._has_begun = False
        self._last_activity_at = clock()

    async def next_streamed(self, silence_s: float, keep_alive: bytes) -> bytes:
        """Returns the next parts, or `keep_alive` if none was available for a while. Empty at the
        end.

        Raises `TimeoutError` after `silence_s` seconds without parts or progress.
        """
        while True:
            silent = self._clock() - self._last_activity_at
            if silent >= silence_s:
                raise TimeoutError
            try:
                parts = await self.next(min(KEEP_ALIVE_S, silence_s - silent))
            except TimeoutError:
                if self._has_begun and keep_alive:
                    return keep_alive
            else:
                self._has_begun = True
                return parts

    def record_activity(self, at: float) -> None:
        self._last_activity_at = at
