"""Records the calls of deployments and polls the deployments that have replicas.

An idle server polls nothing. If no deployment has a replica, the poll loop waits for a
notification.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.runtime.interface import Runtime
from stoker.runtime.listening import RuntimeListener, Served
from stoker.runtime.observed import DeploymentStats, Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.server.events.series import FINE_S, RATE_STEPS, RECENT, Series, merge, quantile

log = logging.getLogger(__name__)

MOST = 1000
"""Maximum number of remembered deployments. The least recently called one is forgotten first. Each
uses 110 kB.
"""
_TURN = 200
"""Number of deployments that are polled before other tasks may run."""


@dataclass(frozen=True, kw_only=True)
class ObservedDeployment:
    """Current state of all versions of a deployment together."""

    status: Status
    queue: int
    """Number of calls that wait or are in progress."""
    replicas: int
    """Number of ready replicas."""
    alive: int
    """Number of all replicas, including replicas that start or stop."""
    memory_bytes: int
    passes: int
    samples: int
    """Number of samples since its replicas started, including replicas that have ended."""
    versions: tuple[tuple[str, DeploymentStats], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recent:
    """Statistics of recent calls."""

    requests_per_s: float = 0.0
    errors_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    """Latencies of the last minute."""


class History(RuntimeListener):
    def __init__(
        self, directory: Directory, runtime: Runtime, clock: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._clock = clock
        self._series: dict[str, Series] = {}
        self._at_work: dict[str, tuple[int, int]] = {}
        """Maps each polled deployment to its passes and samples at the last poll."""
        self._news = asyncio.Event()

    # --- notifications ---

    def served(self, call: Served) -> None:
        now = self._clock()
        series = self._series.get(call.deployment_id) or self._begun(call.deployment_id, now)
        if series is not None:
            series.add(call, now)

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        if status in (Status.STARTING, Status.READY) and spec.deployment not in self._at_work:
            self._at_work[spec.deployment] = (0, 0)
            self._news.set()

    # --- polling ---

    async def run(self) -> None:
        """Polls all deployments with replicas once per step. Waits while no deployment has
        replicas.
        """
        while True:
            if not self._at_work:
                self._news.clear()
                await self._news.wait()
            # Polls in the middle of a step, because the values of a step are read at its end.
            await asyncio.sleep(FINE_S - (self._clock() + FINE_S / 2) % FINE_S)
            await self.look()

    async def look(self) -> None:
        """Polls each deployment with replicas once."""
        for number, deployment_id in enumerate(list(self._at_work), start=1):
            self._look_at(deployment_id)
            if number % _TURN == 0:
                await asyncio.sleep(0)

    def _look_at(self, deployment_id: str) -> None:
        entry = self._directory.find(deployment_id)
        if entry is None:
            self._at_work.pop(deployment_id, None)
            self._series.pop(deployment_id, None)
            return
        now, observed = self._clock(), self.observe(entry)
        series = self._series.get(deployment_id) or self._begun(deployment_id, now)
        if series is None:
            return
        passes, samples = self._at_work[deployment_id]
        # A lower count means that the counter was reset.
        passes = observed.passes - passes if observed.passes >= passes else observed.passes
        samples = observed.samples - samples if observed.samples >= samples else observed.samples
        series.see(
            now,
            queue=observed.queue,
            replicas=observed.replicas,
            memory_bytes=observed.memory_bytes,
            passes=passes,
            samples=samples,
        )
        if observed.alive or observed.queue:
            self._at_work[deployment_id] = (observed.passes, observed.samples)
        else:
            del self._at_work[deployment_id]

    def observe(self, entry: DirectoryEntry) -> ObservedDeployment:
        """Returns the current state of a deployment. An adapter has no replicas of its own: they
        belong to its base.
        """
        known = entry.callable_versions | {entry.version_id}
        version_stats = [(item, stats) for item in known if (stats := self._runtime.stats(item))]
        live = dict(version_stats).get(entry.version_id)
        status = live.status if live else Status.IDLE
        if entry.base_id:
            return ObservedDeployment(
                status=status, queue=0, replicas=0, alive=0, memory_bytes=0, passes=0, samples=0
            )
        replicas = [replica for _, stats in version_stats for replica in stats.replicas]
        return ObservedDeployment(
            status=status,
            queue=sum(stats.calls for _, stats in version_stats),
            replicas=sum(item.status is Status.READY for item in replicas),
            alive=len(replicas),
            memory_bytes=sum(item.memory_bytes or 0 for item in replicas),
            passes=sum(sum(stats.batches.passes) for _, stats in version_stats),
            samples=sum(stats.batches.samples for _, stats in version_stats),
            versions=tuple(version_stats),
        )

    # --- queries ---

    def recent(self, deployment_id: str) -> Recent:
        series = self._series.get(deployment_id)
        if series is None:
            return Recent()
        now = self._clock()
        minute = series.recent(now, RECENT)
        places: dict[int, int] = {}
        calls = errors = 0
        first = int(now) // FINE_S - RATE_STEPS
        for bucket in minute:
            merge(places, bucket.places)
            if bucket.slot >= first:
                calls += bucket.calls
                errors += bucket.client_error + bucket.server_error
        seconds = max(1.0, now - first * FINE_S)
        return Recent(
            requests_per_s=calls / seconds,
            errors_per_s=errors / seconds,
            p50_ms=quantile(places, 0.5),
            p99_ms=quantile(places, 0.99),
        )

    def is_quiet(self, deployment_id: str) -> bool:
        """Returns True if a deployment received no calls for a minute and is not polled."""
        series = self._series.get(deployment_id)
        has_calls = series is not None and self._clock() - series.used_at <= 60 + FINE_S
        return not has_calls and deployment_id not in self._at_work

    def series(self, deployment_id: str) -> Series | None:
        return self._series.get(deployment_id)

    def now(self) -> float:
        return self._clock()

    def _begun(self, deployment_id: str, now: float) -> Series | None:
        # A deployment that was deleted meanwhile is not added again.
        if self._directory.find(deployment_id) is None:
            return None
        for gone in [
            known_id for known_id in self._series if self._directory.find(known_id) is None
        ]:
            del self._series[gone]
        if len(self._series) >= MOST:
            quietest = min(self._series, key=lambda known_id: self._series[known_id].used_at)
            del self._series[quietest]
        series = self._series[deployment_id] = Series(now)
        return series
