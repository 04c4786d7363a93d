"""Counters since the start of the process."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from stoker.base.fairness import Tier
from stoker.runtime.listening import OK, Served
from stoker.runtime.observed import DeploymentStats, Reason, Status
from stoker.server.telemetry.histogram import Histogram

# fmt: off
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
LOAD_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# fmt: on


_NOT_EVICTED = (Reason.STOPPED_BY_USER, Reason.SERVER_STOPPING, Reason.CHANGED)
_LOST = (Reason.WORKER_LOST, Reason.STALLED, Reason.OUT_OF_MEMORY)
_NOT_LOADED = (
    Reason.LOAD_FAILED,
    Reason.LOAD_TIMEOUT,
    Reason.INSUFFICIENT_MEMORY,
    Reason.FILES_MISSING,
)
VERSIONS = 16
"""Maximum number of versions per deployment that are counted separately: the most recent ones."""


@dataclass(slots=True, eq=False)
class VersionTally:
    """Counters of one version of a deployment."""

    outcomes: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    """Count by outcome and by whether the call was a mirrored copy."""
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def add(self, call: Served) -> None:
        self.outcomes[call.outcome, call.is_copy] += 1
        if call.seconds:
            self.seconds.observe(call.seconds)


@dataclass(slots=True, eq=False)
class TierTally:
    """Counters of the calls of one service tier to a deployment."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    """Sums of `Served.counts`."""
    queued: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def add(self, call: Served) -> None:
        self.outcomes[call.outcome] += 1
        for name, count in call.counts.items():
            self.counts[name] += count
        if call.outcome == OK:
            # Language models report the queue as a part of the time to the first token.
            in_replica_us = call.times.get("queue") or call.times.get("first_token") or 0
            self.queued.observe(call.waited_s + in_replica_us / 1_000_000)


@dataclass(slots=True, eq=False)
class DeploymentTally:
    """Counters of one deployment."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    waited: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    loads: Histogram = field(default_factory=lambda: Histogram(LOAD_SECONDS))
    counts: Counter[str] = field(default_factory=Counter[str])
    """Sums of `Served.counts`."""
    starts: Counter[str] = field(default_factory=Counter[str])
    """Started replicas, by the result of the start."""
    evictions: Counter[str] = field(default_factory=Counter[str])
    losses: Counter[str] = field(default_factory=Counter[str])
    versions: dict[str, VersionTally] = field(default_factory=dict[str, VersionTally])
    """Counters by version id."""
    tiers: dict[Tier, TierTally] = field(default_factory=dict[Tier, TierTally])

    def add(self, call: Served, tier: Tier) -> None:
        """Counts a call of a service tier."""
        self.outcomes[call.outcome] += 1
        self.waited.observe(call.waited_s)
        if call.seconds:
            # Calls that never reached a replica would look like the fastest ones.
            self.seconds.observe(call.seconds)
        for name, count in call.counts.items():
            self.counts[name] += count
        if call.version_id:
            self._of_version(call.version_id).add(call)
        if tier not in self.tiers:
            self.tiers[tier] = TierTally()
        self.tiers[tier].add(call)

    def count_change(self, status: Status, reason: Reason) -> None:
        """Counts an event of `RuntimeListener.changed`."""
        if _is_eviction(status, reason):
            self.evictions[reason] += 1
        elif status is not Status.STARTING and reason in _LOST:
            self.losses[reason] += 1
        elif status is not Status.STARTING and reason in _NOT_LOADED:
            self.starts[reason] += 1

    def count_load(self, seconds: float) -> None:
        """Counts an event of `RuntimeListener.loaded`."""
        self.starts[Reason.LOADED] += 1
        self.loads.observe(seconds)

    def _of_version(self, version_id: str) -> VersionTally:
        tally = self.versions.get(version_id)
        if tally is None:
            if len(self.versions) >= VERSIONS:
                del self.versions[next(iter(self.versions))]
            tally = self.versions[version_id] = VersionTally()
        return tally


@dataclass(slots=True, eq=False)
class Answers:
    """Counters of the responses to requests of one method on one route."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))


def counts(status: Status, reason: Reason) -> bool:
    """Returns True if a status change gives a deployment metrics: from its first start on."""
    has_gone_wrong = reason in _LOST or reason in _NOT_LOADED
    return status is Status.STARTING or _is_eviction(status, reason) or has_gone_wrong


def _is_eviction(status: Status, reason: Reason) -> bool:
    return status is Status.STOPPING and reason not in _NOT_EVICTED


class Named(Protocol):
    """Object with the labels of a series: a directory's entry or a specification."""

    @property
    def account_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def pipeline(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class MetricsRow:
    """All metrics of one deployment."""

    entry: Named
    tally: DeploymentTally
    stats: DeploymentStats
    held_mib_ms: int
