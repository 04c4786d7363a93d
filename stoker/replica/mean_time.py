"""Mean time of the latest items."""

import time
from collections.abc import Generator
from contextlib import contextmanager

FIRST_ITEMS = 8
"""Number of items before the mean is used."""
QUICK_S = 0.00025
"""Maximum mean time of a quick item in seconds: a few times what waking a thread takes."""
_WEIGHT = 0.1
"""Weight of the newest items in the mean."""


class MeanTime:
    """Mean time of one item, in which the latest items count most."""

    def __init__(self) -> None:
        self._items = 0
        self._mean_s = 0.0

    def took(self, seconds: float, items: int = 1) -> None:
        """Records the duration of some items together."""
        self._items += 1
        self._mean_s += (seconds / items - self._mean_s) * max(_WEIGHT, 1 / self._items)

    @contextmanager
    def measured(self, items: int) -> Generator[None]:
        """Records the processor time of the block, which works on this number of items."""
        started = time.thread_time()
        yield
        self.took(time.thread_time() - started, max(1, items))

    def is_above(self, seconds: float) -> bool:
        """Returns True if items are known to take longer."""
        return self._items >= FIRST_ITEMS and self._mean_s > seconds

    @property
    def is_quick(self) -> bool:
        """True if items are known to be quick."""
        return self._items >= FIRST_ITEMS and self._mean_s <= QUICK_S
