"""What became of the copies that a mirror got, added up."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from stoker.workloads.evaluation.replay.comparison import Comparison, Measure


@dataclass
class Latency:
    """Of calls that were answered."""

    calls: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)

    def merge(self, other: "Latency") -> None:
        self.calls += other.calls
        self.seconds += other.seconds
        self.longest_s = max(self.longest_s, other.longest_s)


@dataclass
class Tally:
    live: Latency = field(default_factory=Latency)
    """Of the calls that were copied and answered twice."""
    mirror: Latency = field(default_factory=Latency)
    failed: int = 0
    """Copies that ended with an error."""
    dropped: int = 0
    """Copies for which there was no time."""
    differs: int = 0
    """Answers that differ by what a trial goes by."""
    difference: float = 0.0
    """The largest between two numbers."""
    labels: int = 0
    equal_labels: int = 0
    texts: int = 0
    equal_texts: int = 0
    cosines: int = 0
    cosine_sum: float = 0.0
    least_cosine: float = 1.0

    def add(self, found: Comparison) -> None:
        self.differs += found.differs
        is_number = math.isfinite(found.difference)
        self.difference = max(self.difference, found.difference) if is_number else math.inf
        self.labels += len(found.labels)
        self.equal_labels += sum(found.labels)
        self.texts += len(found.texts)
        self.equal_texts += sum(found.texts)
        # A vector with what is no number is like no other.
        cosines = [one if math.isfinite(one) else 0.0 for one in found.cosines]
        self.cosines += len(cosines)
        self.cosine_sum += math.fsum(cosines)
        self.least_cosine = min([self.least_cosine, *cosines])

    def merge(self, other: "Tally") -> None:
        """Add what another server, or this one in an earlier life, has counted."""
        self.live.merge(other.live)
        self.mirror.merge(other.mirror)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.difference = max(self.difference, other.difference)
        self.least_cosine = min(self.least_cosine, other.least_cosine)

    @property
    def measure(self) -> Measure:
        if self.labels:
            return "top_labels"
        return "cosine" if self.cosines else "texts"

    def as_json(self) -> dict[str, Any]:
        """JSON knows no infinity: null stands for it."""
        found = asdict(self)
        return found | {"difference": self.difference if math.isfinite(self.difference) else None}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "Tally":
        """Of what `as_json` made."""
        found = cls(live=Latency(**kept["live"]), mirror=Latency(**kept["mirror"]))
        for name in _NUMBERS & kept.keys():
            setattr(found, name, math.inf if kept[name] is None else kept[name])
        return found


_NUMBERS = frozenset(one.name for one in fields(Tally)) - {"live", "mirror"}
_SUMS = _NUMBERS - {"difference", "least_cosine"}
