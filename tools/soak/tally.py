"""What was done in a soak, and what went wrong."""

import time
from collections import Counter
from dataclasses import dataclass, field

MOST_KEPT = 200
"""Of losses, each with its words; the count goes on."""


@dataclass
class Tally:
    answers: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """Of an actor, with a status; 0: the connection broke."""
    done: Counter[str] = field(default_factory=Counter[str])
    """Things acknowledged: models uploaded, videos made, runs deleted, …"""
    faults: Counter[str] = field(default_factory=Counter[str])
    losses: list[str] = field(default_factory=list[str])
    lost: int = 0
    waited_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Actor → seconds of its calls that were answered with 200."""
    started: float = field(default_factory=time.monotonic)

    def lose(self, what: str) -> None:
        """Something acknowledged is gone, or something forbidden was seen."""
        self.lost += 1
        if len(self.losses) < MOST_KEPT:
            self.losses.append(f"{time.monotonic() - self.started:.0f} s: {what[:400]}")
