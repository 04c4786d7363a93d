"""Vital signs of a replica, from its messages and heartbeats."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.wire.passes import Batches, RecordedPasses
from stoker.wire.protocol import Heartbeat

IDLE_HEARTBEAT_S = 3.0
"""Maximum seconds between two heartbeats of a replica without work."""


def idle_heartbeat_s(timeout_s: float) -> float:
    """Returns the seconds between two heartbeats of a replica without work. A silent replica is
    replaced after the timeout, so several heartbeats must fit into it.
    """
    return max(1.0, min(IDLE_HEARTBEAT_S, timeout_s / 4))


@dataclass(eq=False)
class Vitals:
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock in seconds."""
    memory_bytes: int | None = None
    """Proportional set size in bytes. None if not measured yet."""
    own_bytes: int = 0
    """Bytes that would be free if the replica ended. 0 if not measured yet."""
    device_bytes: int | None = None
    """Maximum bytes that the replica holds of any of its GPUs. None if unknown."""
    engine: str = ""
    """Engine that runs the model now. Empty before the model is loaded."""
    cache_usage: float | None = None
    """Fraction of a language model's key-value cache that requests hold."""
    recorded: RecordedPasses = field(default_factory=RecordedPasses)
    batches: Batches = field(default_factory=Batches)
    busy_s: float = 0.0
    """Time spent in forward passes, seconds."""
    accepted: int = 0
    """Number of calls that the replica has accepted and not finished, by its own count. Fewer calls
    may be pending here if some were cancelled.
    """
    stuck_s: float = 0.0
    """Seconds that one of its threads has had work without a step, by its own clock."""
    is_settled: bool = False
    """True if no measurements are left for its idle times."""
    _work_done: int = 0

    def __post_init__(self) -> None:
        self.last_message_at = self.clock()
        self.last_progress_at = self.last_message_at

    def message_received(self) -> None:
        self.last_message_at = self.clock()

    def progressed(self) -> None:
        """Records progress of accepted work at the time of the last message."""
        self.last_progress_at = self.last_message_at

    def woke_up(self) -> None:
        """Restarts the timers of a replica that is ready again."""
        self.last_message_at = self.last_progress_at = self.clock()
        # The thread that moved the memory made no step meanwhile.
        self.stuck_s = 0.0

    def work_begins(self) -> None:
        """Handles a call that was sent while none was pending. If the replica was idle, restarts
        the stall timer. Unfinished work keeps the timer running.
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
        self.recorded = beat.recorded
        self.accepted = beat.accepted
        self.stuck_s = beat.stuck_s
        self.is_settled = beat.is_settled
        if beat.progress != self._work_done or not beat.accepted:
            self._work_done = beat.progress
            self.progressed()

    def why_unhealthy(
        self, heartbeat_timeout_s: float, stall_timeout_s: float, *, has_work: bool
    ) -> str | None:
        """Returns why the replica should be replaced: silent, or alive without progress on its
        work. None if it is healthy.
        """
        now = self.clock()
        if now - self.last_message_at > heartbeat_timeout_s:
            return f"it was silent for {now - self.last_message_at:.0f} s"
        stuck_s = self.stuck_s
        if has_work or self.accepted:
            stuck_s = max(stuck_s, now - self.last_progress_at)
        if stuck_s > stall_timeout_s:
            return f"it made no progress on accepted work for {stuck_s:.0f} s"
        return None
