"""Processor time of processes, and values that can only change while a process computes."""

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

TICKS = os.sysconf("SC_CLK_TCK")
"""The kernel's ticks in a second."""
FRESH_S = 5.0
"""Maximum age of a kept value in seconds."""
COMPUTED_S = 0.005
"""Processor seconds in which a process may allocate about 50 MiB."""
_MOST_KEPT = 1000
_PROCESS_CLOCK = 2
"""Kind of a clock that counts all threads of a process; see `MAKE_PROCESS_CPUCLOCK` in Linux."""


def processor_s(pid: int) -> float | None:
    """Returns the processor time of a process in seconds. None if it has ended, or if the kernel
    does not show it.
    """
    if pid <= 0:
        return None
    try:
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    except (OSError, OverflowError):
        return None


class KeptReadings(Generic[T]):
    """Keeps the last reading of a process until the process has computed for `COMPUTED_S`.

    Reading a file of `/proc` takes twenty times as long as reading a clock.
    """

    def __init__(
        self,
        read: Callable[[int], T],
        *,
        computed_s: Callable[[int], float | None] = processor_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._computed_s = computed_s
        self._clock = clock
        self._kept: dict[int, tuple[float, float, T]] = {}
        """Maps a process to its processor time and the time at its last reading, and the value."""

    def __call__(self, pid: int) -> T:
        """Returns the last reading, or a new one if it may have changed."""
        computed_s, now, kept = self._computed_s(pid), self._clock(), self._kept.get(pid)
        if computed_s is None:
            self._kept.pop(pid, None)
            return self._read(pid)
        if kept is not None:
            before_s, read_at, value = kept
            # A lower processor time belongs to another process with the same id.
            if 0 <= computed_s - before_s < COMPUTED_S and now - read_at < FRESH_S:
                return value
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        value = self._read(pid)
        self._kept[pid] = (computed_s, now, value)
        return value
