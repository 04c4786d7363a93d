"""A replica's vital signs, as its messages and heartbeats bring them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.wire.protocol import Batches, Heartbeat


@dataclass(eq=False)
class Vitals:
    clock: Callable[[], float] = time.monotonic
    """Monotonic, seconds."""
    memory_bytes: int | None = None
    """Proportional set size, bytes; None: not measured yet."""
    own_bytes: int = 0
    """What would be free if it ended, bytes; 0: not measured yet."""
    device_bytes: int | None = None
    """What it holds of each of its graphics devices, at most; None: not known."""
    engine: str = ""
    """What runs the model now; empty before it is loaded."""
    cache_usage: float | None = None
    """The share of the key-value cache that requests hold, of language models."""
    batches: Batches = field(default_factory=Batches)
    busy_s: float = 0.0
    """Time spent in forward passes, seconds."""
    accepted: int = 0
    """What it has accepted and not left, by its own count: the calls that are pending here may be
    fewer, where some were cancelled."""
    stuck_s: float = 0.0
    """For how long one of its threads has had work and made no step, by its own clock."""
    is_settled: bool = False
    """Whether nothing is left to be measured in its idle moments."""
    _work_done: int = 0

    def __post_init__(self) -> None:
        self.last_message_at = self.clock()
        self.last_progress_at = self.last_message_at

    def message_received(self) -> None:
        self.last_message_at = self.clock()

    def progressed(self) -> None:
        """Accepted work has moved on with the last message, or begins now from nothing."""
        self.last_progress_at = self.last_message_at

    def work_begins(self) -> None:
        """A call was sent, and none is pending. Where it had nothing to do until now, no progress
        before this can be missed; what it has not left goes on being counted.
        """
        if not self.accepted:
            self.last_progress_at = self.clock()

    def update(self, beat: Heartbeat) -> None:
        self.memory_bytes = beat.memory_bytes
        self.own_bytes = beat.own_bytes
        self.device_bytes = beat.device_bytes
        self.busy_s = beat.busy_s
        self.engine = beat.engine
        self.cache_usage = beat.cache_usage
        self.batches = beat.batches
        self.accepted = beat.accepted
        self.stuck_s = beat.stuck_s
        self.is_settled = beat.is_settled
        if beat.progress != self._work_done or not beat.accepted:
            self._work_done = beat.progress
            self.progressed()

    def why_unhealthy(
        self, heartbeat_timeout_s: float, stall_timeout_s: float, *, has_work: bool
    ) -> str | None:
        """Why it should be replaced, or None: silent, or alive without progress on its work."""
        now = self.clock()
        if now - self.last_message_at > heartbeat_timeout_s:
            return f"it was silent for {now - self.last_message_at:.0f} s"
        stuck_s = self.stuck_s
        if has_work or self.accepted:
            stuck_s = max(stuck_s, now - self.last_progress_at)
        if stuck_s > stall_timeout_s:
            return f"it made no progress on accepted work for {stuck_s:.0f} s"
        return None
