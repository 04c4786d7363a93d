"""A call's answer, piece by piece, and what replicas report of the call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.runtime.interface import OnProgress
from stoker.runtime.parts import Parts


@dataclass(eq=False)
class CallStats:
    """What replicas have reported of a call: counts and times, microseconds, as of `Result`."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    times: dict[str, int] = field(default_factory=dict[str, int])
    is_pending: bool = False
    """Whether a replica has yet to report what a cancelled call came to."""
    _callback: Callable[[], None] | None = None

    def when_complete(self, callback: Callable[[], None]) -> None:
        """Call back when nothing more will be reported: now, or in a moment."""
        if self.is_pending:
            self._callback = callback
        else:
            callback()

    def complete(self, counts: Mapping[str, int]) -> None:
        """What a cancelled call came to was reported, or never will be."""
        self.is_pending = False
        self.counts.update(counts)
        if self._callback:
            self._callback()


class Answer(Parts):
    """Of a replica, which has nothing left to do for it once it has ended."""

    def __init__(self, begun_at: float, stats: CallStats) -> None:
        super().__init__()
        self.last_activity_at = begun_at
        """Monotonic, seconds: when parts or progress last came, or it was begun."""
        self.stats = stats
        self.on_progress: OnProgress | None = None
