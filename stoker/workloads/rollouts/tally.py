"""Totals of the results of mirrored copies."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from stoker.workloads.evaluation.replay.comparison import Comparison, Measure


@dataclass
class Latency:
    """Latency of answered calls."""

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

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "Latency":
        """Returns the latency from a stored object, without fields of a later release."""
        return cls(**{item.name: kept[item.name] for item in fields(cls) if item.name in kept})


@dataclass
class ComparisonTally:
    live: Latency = field(default_factory=Latency)
    """Latency of the original calls that were copied and answered twice."""
    mirror: Latency = field(default_factory=Latency)
    failed: int = 0
    """Number of copies that ended with an error."""
    dropped: int = 0
    """Number of copies that were dropped for lack of time."""
    differs: int = 0
    """Number of answers that differ by a trial's criteria."""
    difference: float = 0.0
    """Largest difference between two numbers."""
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
        # A vector with NaN or infinity counts as unlike any other.
        cosines = [value if math.isfinite(value) else 0.0 for value in found.cosines]
        self.cosines += len(cosines)
        self.cosine_sum += math.fsum(cosines)
        self.least_cosine = min([self.least_cosine, *cosines])

    def merge(self, other: "ComparisonTally") -> None:
        """Adds the counts of another server, or of this server before a restart."""
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
        """Returns a JSON object. JSON has no infinity: null stands for it."""
        values = asdict(self)
        return values | {"difference": self.difference if math.isfinite(self.difference) else None}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "ComparisonTally":
        """Returns the tally from the result of `as_json`."""
        tally = cls(live=Latency.of(kept["live"]), mirror=Latency.of(kept["mirror"]))
        for name in _NUMBERS & kept.keys():
            setattr(tally, name, math.inf if kept[name] is None else kept[name])
        return tally


_NUMBERS = frozenset(item.name for item in fields(ComparisonTally)) - {"live", "mirror"}
_SUMS = _NUMBERS - {"difference", "least_cosine"}
