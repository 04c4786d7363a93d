"""Chooses quiet moments for full garbage collections.

A full collection of CPython visits all container objects, 0.5 µs each, and blocks the event loop
meanwhile. CPython starts it when enough objects were created, so usually while the largest requests
are in memory. Reference counting frees most of a request's objects without it.
"""

import asyncio
import gc
import time
from collections.abc import Callable

LOOK_S = 0.5
QUIET = 0.1
"""Maximum share of a core that the event loop uses in a quiet moment."""
MANY = 50_000
"""Maximum number of objects in the oldest generation in a quiet moment; collecting them takes some
25 ms. More objects belong to large requests in progress and are soon freed.
"""
MOST_WAIT_S = 60.0
"""Maximum wait in seconds for a quiet moment. A server that is never quiet collects anyway."""
_NEVER = 1 << 30
_YOUNG, _MIDDLE = 4200, 0
"""Thresholds of the younger generations. The middle one is collected after 8,400 objects, as by
default, but in fewer steps. A step visits the objects of all requests in progress, and most of them
end before a longer step.
"""


class Garbage:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            clock: returns seconds.
            processor: returns the processor seconds of the calling thread.
        """
        self._clock = clock
        self._processor = processor
        self._young, self._middle, self._old = gc.get_threshold()
        self._looked_at = clock()
        self._due_at: float | None = None
        self._had_s = processor()

    async def run(self) -> None:
        """Collects garbage at quiet moments until it is cancelled. Must run on the event loop that
        it protects.
        """
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        try:
            while True:
                # A collection may wait, so the check may be late.
                await asyncio.sleep(4 * LOOK_S if self._due_at is None else LOOK_S)
                if self.is_time():
                    gc.collect()
        finally:
            gc.set_threshold(self._young, self._middle, self._old)

    def is_time(self) -> bool:
        """Returns True if a collection should run now. Must be called at regular intervals."""
        now, had_s = self._clock(), self._processor()
        share = (had_s - self._had_s) / max(now - self._looked_at, 1e-9)
        self._looked_at, self._had_s = now, had_s
        # CPython would start a full collection after this number of collections of the younger
        # generation.
        if gc.get_count()[2] < self._old:
            self._due_at = None
            return False
        if self._due_at is None:
            self._due_at = now
        is_quiet = share <= QUIET and len(gc.get_objects(generation=2)) <= MANY
        return is_quiet or now - self._due_at >= MOST_WAIT_S
