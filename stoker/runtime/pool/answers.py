"""Answer of a call in parts, and the replicas' reports about the call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.runtime.interface import OnProgress
from stoker.runtime.parts import AnswerParts


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
        self, begun_at: float, stats: CallStats, on_progress: OnProgress | None = None
    ) -> None:
        super().__init__()
        self.stats = stats
        self.on_progress = on_progress
        self._last_activity_at = begun_at

    @property
    def last_activity_at(self) -> float:
        """Time of the last part or progress, or of the start. Monotonic, in seconds."""
        return self._last_activity_at

    def record_activity(self, at: float) -> None:
        self._last_activity_at = at
