"""How much a replica has done since its start, and whether its threads get on."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.wire.protocol import Batches


class Pulse:
    """One thread's: it alone counts, others read. `with pulse:` it is at work, a step of it."""

    __slots__ = ("_waits", "is_working", "steps")

    def __init__(self, waits: Callable[[], bool] = lambda: False) -> None:
        """
        Args:
            waits: whether there is work for the thread that it has not taken up.
        """
        self.steps = 0
        """Grows with every step of work done."""
        self.is_working = False
        """It has begun something that it has not left, whether or not anyone waits for it."""
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
    """Plain numbers, for the heartbeat to read whenever it is due."""

    busy_s: float = 0.0
    """Seconds spent in forward passes."""
    batches: Batches = field(default_factory=Batches)
    """The passes that worked for requests; of language models, those that gave them tokens."""
    pulses: list[Pulse] = field(default_factory=list[Pulse])
    """Of the threads that work on requests."""

    @property
    def progress(self) -> int:
        """Grows with every step of work done."""
        return sum(one.steps for one in self.pulses)

    @property
    def at_work(self) -> int:
        """Threads that have something to do, or have not left what they began."""
        return sum(one.is_busy for one in self.pulses)

    def pulse(self, waits: Callable[[], bool] = lambda: False) -> Pulse:
        """For one thread more."""
        self.pulses.append(made := Pulse(waits))
        return made

    def passed(self, size: int, seconds: float) -> None:
        """Count a forward pass of so many samples."""
        self.busy_s += seconds
        self.batches.count(size)


class Stalls:
    """Finds the thread that does not get on, however well the others do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}
        """By the pulse's number: its steps, and since when there were so many while it was busy."""

    def look(self, pulses: Sequence[Pulse]) -> float:
        """For how many seconds a busy thread has made no step: the longest of all."""
        now, longest = self._clock(), 0.0
        for number, pulse in enumerate(pulses):
            steps = pulse.steps
            before, since = self._seen.get(number, (steps, now))
            if steps != before or not pulse.is_busy:
                since = now
            self._seen[number] = (steps, since)
            longest = max(longest, now - since)
        return longest
