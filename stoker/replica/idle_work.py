"""Gives an engine time to record passes without a noticeable delay of requests."""

import time
from collections.abc import Callable

from stoker.models.engines.interface import OverlappingEngine

QUIET_S = 0.05
"""Time in seconds without a batch after which the next request is not expected soon."""
PATIENCE_S = 1.0
"""Time in seconds to wait for an empty queue. Under constant load, a step then runs between two
batches.
"""
REST = 20
"""Ratio of the time between two steps to the duration of a step."""


class IdleWork:
    """Steps that make an engine's later passes faster. A step takes about as long as a pass.

    A request that arrives meanwhile waits for the end of one step. Therefore:

    - If no batch ran for a moment, a step runs if it may be useful.
    - Between batches, a step runs only if the work pays: it would have saved more time than it
      takes. A moment with an empty queue is preferred.
    """

    def __init__(
        self, engine: OverlappingEngine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._wanted_since: float | None = None
        """Start of the search for an empty queue."""
        self._last_batch = -QUIET_S
        self._rests_until = 0.0

    @property
    def is_wanted(self) -> bool:
        return self._engine.wants_idle_time

    def worked(self) -> None:
        """Notes that a batch has just ended."""
        self._last_batch = self._clock()

    def is_due(self, *, is_idle: bool) -> bool:
        """Returns True if the next step should run now.

        Args:
            is_idle: True if no request waits.
        """
        if not self._engine.wants_idle_time:
            self._wanted_since = None
            return False
        now = self._clock()
        if self._wanted_since is None:
            self._wanted_since = now
        if now < self._rests_until:
            return False
        if is_idle and now >= self._last_batch + QUIET_S:
            return True
        is_late = now - self._wanted_since >= PATIENCE_S
        return (is_idle or is_late) and self._engine.idle_work_pays

    def step(self, *, is_idle: bool = True) -> None:
        """Runs a step. Raises `DeviceLostError` if the device can no longer compute.

        Args:
            is_idle: True if no request waits.
        """
        started = self._clock()
        self._engine.use_idle_time()
        ended = self._clock()
        self._rests_until = ended + REST * (ended - started)
        if is_idle:
            self._wanted_since = None
