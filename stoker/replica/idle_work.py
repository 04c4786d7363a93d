"""Gives an engine time to record passes without a noticeable delay of requests."""

import time
from collections.abc import Callable

from stoker.models.engines.interface import OverlappingEngine

REST = 20
"""Ratio of the time between two steps to the duration of a step."""
PATIENCE_S = 1.0
"""Time in seconds to wait for an empty queue. Under constant load, a step then runs between two
batches.
"""


class IdleWork:
    """Steps that make an engine's later passes faster."""

    def __init__(
        self, engine: OverlappingEngine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._wanted_since: float | None = None
        self._rests_until = 0.0

    @property
    def is_wanted(self) -> bool:
        return self._engine.wants_idle_time

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
        is_late = now - self._wanted_since >= PATIENCE_S
        return now >= self._rests_until and (is_idle or is_late)

    def step(self) -> None:
        started = self._clock()
        self._engine.use_idle_time()
        ended = self._clock()
        self._rests_until = ended + REST * (ended - started)
        self._wanted_since = None
