"""What has been counted since the process began."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from stoker.runtime.listening import Served
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
"""Of a deployment, those that are told apart: the ones that were called last."""


@dataclass(slots=True, eq=False)
class VersionTally:
    """Of one version of a deployment."""

    outcomes: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    """By outcome, and by whether it was a copy."""
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def add(self, call: Served) -> None:
        self.outcomes[call.outcome, call.is_copy] += 1
        if call.seconds:
            self.seconds.observe(call.seconds)


@dataclass(slots=True, eq=False)
class Tally:
    """Of one deployment."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    waited: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    loads: Histogram = field(default_factory=lambda: Histogram(LOAD_SECONDS))
    counts: Counter[str] = field(default_factory=Counter[str])
    """As of `Served.counts`."""
    starts: Counter[str] = field(default_factory=Counter[str])
    """Replicas that were started, by how that ended."""
    evictions: Counter[str] = field(default_factory=Counter[str])
    losses: Counter[str] = field(default_factory=Counter[str])
    versions: dict[str, VersionTally] = field(default_factory=dict[str, VersionTally])
    """By their ids."""

    def add(self, call: Served) -> None:
        self.outcomes[call.outcome] += 1
        self.waited.observe(call.waited_s)
        if call.seconds:
            # Those that never had a replica would look like the fastest ones.
            self.seconds.observe(call.seconds)
        for name, count in call.counts.items():
            self.counts[name] += count
        if call.version_id:
            self._of_version(call.version_id).add(call)

    def count_change(self, status: Status, reason: Reason) -> None:
        """What `RuntimeListener.changed` tells."""
        if _is_eviction(status, reason):
            self.evictions[reason] += 1
        elif status is not Status.STARTING and reason in _LOST:
            self.losses[reason] += 1
        elif status is not Status.STARTING and reason in _NOT_LOADED:
            self.starts[reason] += 1

    def count_load(self, seconds: float) -> None:
        """What `RuntimeListener.loaded` tells."""
        self.starts[Reason.LOADED] += 1
        self.loads.observe(seconds)

    def _of_version(self, version_id: str) -> VersionTally:
        found = self.versions.get(version_id)
        if found is None:
            if len(self.versions) >= VERSIONS:
                del self.versions[next(iter(self.versions))]
            found = self.versions[version_id] = VersionTally()
        return found


@dataclass(slots=True, eq=False)
class Answers:
    """To HTTP requests of one method on one route."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))


def counts(status: Status, reason: Reason) -> bool:
    """Whether a change has a deployment have series: from its first start on."""
    has_gone_wrong = reason in _LOST or reason in _NOT_LOADED
    return status is Status.STARTING or _is_eviction(status, reason) or has_gone_wrong


def _is_eviction(status: Status, reason: Reason) -> bool:
    return status is Status.STOPPING and reason not in _NOT_EVICTED


class Named(Protocol):
    """What series are labelled by: a directory's entry, or a specification."""

    @property
    def account_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def pipeline(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """All metrics of one deployment."""

    entry: Named
    tally: Tally
    stats: DeploymentStats
    held_mib_ms: int
