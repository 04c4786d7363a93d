"""Runs forward passes of replicas that share few cores one after the other.

A pass computes on all cores, and its threads spin while they wait for one another. On two cores,
two models with half of the clients each reached three quarters of the throughput of one model with
all of them.
"""

import time
from types import TracebackType

from stoker.replica.shared_lock import SharedLock

PATIENCE = 4
"""Maximum wait for a turn, as a multiple of the replica's own pass: the turns of several similar
replicas.
"""
MOST_S = 0.5
FIRST_S = 0.05
"""Assumed duration in seconds of an unknown pass."""


class Passes:
    """Turns to compute. `with passes:` waits for this replica's turn, but only as long as that
    pays.

    Replicas with short passes do not wait for long passes. Next to a long pass, a short one takes
    twice its time, which is less than the long pass takes.
    """

    def __init__(self, lock: SharedLock | None = None) -> None:
        """
        Args:
            lock: lock of all replicas that take turns. None: no turns.
        """
        self._lock = lock
        self._own_s = FIRST_S
        """Duration of the last pass in seconds."""
        self._is_held = False
        self._began = 0.0

    def __enter__(self) -> None:
        if self._lock is None:
            return
        wait_s = min(MOST_S, PATIENCE * self._own_s)
        self._is_held = self._lock.take(wait_s if self._lock.note <= wait_s else 0.0)
        if self._is_held:
            self._lock.note = self._own_s
        self._began = time.perf_counter()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._lock is None:
            return
        self._own_s = time.perf_counter() - self._began
        if self._is_held:
            self._lock.give()
