"""Decides when the memory of replicas costs the price of background work."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from stoker.runtime.pool.launcher import Launcher
from stoker.runtime.pool.queue import CallQueue
from stoker.runtime.pool.state import State

QUIET_S = 3600.0
"""Seconds without a live call after which background work has its own price."""


class FlexTime:
    """A replica's memory costs the price of background work while the replica works on background
    calls, readiness does not keep the model loaded, and no live call has come for an hour or for
    the idle timeout, if that is longer.

    So background calls never lower the costs: without them, the model would not be loaded at that
    time.
    """

    def __init__(self, state: State, launcher: Launcher, queue: CallQueue) -> None:
        self._state = state
        self._launcher = launcher
        self._queue = queue
        self._work = Counter[str]()
        """Number of background calls that each replica works on."""
        self._flex: set[str] = set()
        """Replicas whose memory costs the price of background work."""

    @contextmanager
    def working(self, replica_id: str) -> Generator[None]:
        """Counts a background call that a replica works on."""
        self._work[replica_id] += 1
        self.update()
        try:
            yield
        finally:
            self._work[replica_id] -= 1
            if not self._work[replica_id]:
                del self._work[replica_id]
            self.update()

    def update(self) -> None:
        """Changes the prices of replicas after a change of the calls or of the specification."""
        flex = set(self._work) if self._work and self._is_quiet() else set[str]()
        for replica_id in self._flex ^ flex:
            self._launcher.set_flex(replica_id, is_flex=replica_id in flex)
        self._flex = flex

    def _is_quiet(self) -> bool:
        state = self._state
        quiet_s = max(QUIET_S, state.spec.idle_timeout_s)
        return state.min_loaded == 0 and self._queue.is_quiet(quiet_s)
