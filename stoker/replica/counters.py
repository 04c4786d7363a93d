"""Counts a replica's work since its start and detects threads that make no progress."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.wire.passes import Batches


class Pulse:
    """Progress of one thread. Only that thread counts; others read. `with pulse:` marks one step of
    work.
    """

    __slots__ = ("_waits", "is_working", "steps")

    def __init__(self, waits: Callable[[], bool] = lambda: False) -> None:
        """
        Args:
            waits: returns True if work waits that the thread has not begun.
        """
        self.steps = 0
        """Number of completed steps of work."""
        self.is_working = False
        """True while the thread is in work that it began, even if no caller waits for it."""
        self._waits = waits

    @property
    def is_busy(self) -> bool:
        return self.is_working or self._waits()

    def stepped(self) -> None:
        self.steps += 1

    def __enter__(self) -> None:
        self.is_working = True

    def __exit__(self, *_: object) -> None:
        self.steps += 1
        self.is_working = False


@dataclass(eq=False)
class Counters:
    """Plain numbers that each heartbeat reads."""

    busy_s: float = 0.0
    """Seconds spent in forward passes."""
    batches: Batches = field(default_factory=Batches)
    """Passes that worked for requests. For language models, passes that produced tokens for
    requests.
    """
    pulses: list[Pulse] = field(default_factory=list[Pulse])
    """Pulses of the threads that work on requests."""

    @property
    def progress(self) -> int:
        """Number of completed steps of all threads."""
        return sum(pulse.steps for pulse in self.pulses)

    @property
    def at_work(self) -> int:
        """Number of threads that have waiting or unfinished work."""
        return sum(pulse.is_busy for pulse in self.pulses)

    def pulse(self, waits: Callable[[], bool] = lambda: False) -> Pulse:
        """Adds and returns the pulse of another thread."""
        self.pulses.append(made := Pulse(waits))
        return made

    def passed(self, size: int, seconds: float) -> None:
        """Counts a forward pass of `size` samples."""
        self.busy_s += seconds
        self.batches.count(size)


class Stalls:
    """Finds the thread that makes no progress, even while others do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}
        """Maps a pulse's number to its steps and the time since when it is busy without a new
        step.
        """

    def look(self, pulses: Sequence[Pulse]) -> float:
        """Returns the longest time in seconds for which a busy thread has completed no step."""
        now, longest = self._clock(), 0.0
        for number, pulse in enumerate(pulses):
            steps = pulse.steps
            before, since = self._seen.get(number, (steps, now))
            if steps != before or not pulse.is_busy:
                since = now
            self._seen[number] = (steps, since)
            longest = max(longest, now - since)
        return longest
