"""When to look for garbage among all objects: not while somebody waits.

A full collection of CPython goes through all objects that hold others, 0.5 µs each, and holds the
event loop meanwhile. By itself it comes whenever enough was made, thus while the largest requests
are in memory. What a request leaves behind mostly goes without it, by the count of its references.
"""

import asyncio
import gc
import time
from collections.abc import Callable

LOOK_S = 0.5
QUIET = 0.1
"""Share of a core that the event loop takes at most while nobody is held up."""
MANY = 50_000
"""Objects, some 25 ms. More of them are large requests in work, and gone in a moment."""
MOST_WAIT_S = 60.0
"""For a quiet moment, once it is time: a server that is never quiet collects all the same."""
_NEVER = 1 << 30


class Garbage:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            clock: seconds.
            processor: seconds that the calling thread has had.
        """
        self._clock = clock
        self._processor = processor
        self._young, self._middle, self._old = gc.get_threshold()
        self._looked_at = clock()
        self._due_at: float | None = None
        self._had_s = processor()

    async def run(self) -> None:
        """Collect at quiet moments, until it is cancelled. To run on the loop that is spared."""
        gc.set_threshold(self._young, self._middle, _NEVER)
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if self.is_time():
                    gc.collect()
        finally:
            gc.set_threshold(self._young, self._middle, self._old)

    def is_time(self) -> bool:
        """Whether to collect now; called again and again."""
        now, had_s = self._clock(), self._processor()
        share = (had_s - self._had_s) / max(now - self._looked_at, 1e-9)
        self._looked_at, self._had_s = now, had_s
        # As many collections of what is younger as would have led to one of all.
        if gc.get_count()[2] < self._old:
            self._due_at = None
            return False
        if self._due_at is None:
            self._due_at = now
        is_quiet = share <= QUIET and len(gc.get_objects(generation=2)) <= MANY
        return is_quiet or now - self._due_at >= MOST_WAIT_S
