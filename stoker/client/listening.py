"""Progress of a push for callers of the library."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PushState:
    """Progress of a push."""

    sent_bytes: int
    """Bytes on the server, including bytes of an earlier push that this one resumed."""
    total_bytes: int
    message: str = ""
    """Fact about the push, for example why a part is sent again."""


@dataclass
class PushReports:
    """Reports the progress of a push to a function. Threads call it one at a time."""

    total_bytes: int
    on_progress: Callable[[PushState], None] | None = None
    sent_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, count: int) -> None:
        self._report(count)

    def file_done(self, path: str) -> None:
        """Does nothing: the bytes of a file were reported."""

    def note(self, message: str) -> None:
        self._report(0, message)

    def _report(self, count: int, message: str = "") -> None:
        with self._lock:
            self.sent_bytes += count
            if self.on_progress:
                self.on_progress(PushState(self.sent_bytes, self.total_bytes, message))
