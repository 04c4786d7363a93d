"""Counts the actions and losses of a soak test."""

import time
from collections import Counter
from dataclasses import dataclass, field

MOST_KEPT = 200
"""Maximum number of losses with a kept description. All are counted."""


@dataclass
class Tally:
    answers: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """Number of responses by actor and status. Status 0 means that the connection broke."""
    done: Counter[str] = field(default_factory=Counter[str])
    """Number of acknowledged actions by name, such as models uploaded, videos made or runs
    deleted.
    """
    faults: Counter[str] = field(default_factory=Counter[str])
    losses: list[str] = field(default_factory=list[str])
    lost: int = 0
    waited_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Maps an actor to the durations, in seconds, of its calls with status 200."""
    started: float = field(default_factory=time.monotonic)

    def lose(self, what: str) -> None:
        """Records that something acknowledged is missing or that something forbidden was seen."""
        self.lost += 1
        if len(self.losses) < MOST_KEPT:
            self.losses.append(f"{time.monotonic() - self.started:.0f} s: {what[:400]}")
