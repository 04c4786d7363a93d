"""Forward passes of replicas that share few cores: one after the other.

A pass computes on all cores, and its threads wait for one another spinning: on two cores, two
models with half of the clients each made three quarters of what one makes with all of them.
"""

import time
from types import TracebackType

from stoker.replica.shared_lock import SharedLock

PATIENCE = 4
"""How many of its own passes one waits for its turn: that of several that are like it."""
MOST_S = 0.5
FIRST_S = 0.05
"""How long a pass is taken to be of which nothing is known."""


class Passes:
    """`with passes:` it is this replica's turn, or was not in a time that is worth waiting for.

    Whoever has long passes is not waited for by those with short ones: beside it they take twice as
    long, and not as long as it.
    """

    def __init__(self, lock: SharedLock | None = None) -> None:
        """
        Args:
            lock: of all that take turns; None: nobody does.
        """
        self._lock = lock
        self._own_s = FIRST_S
        """How long the last pass took."""
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
