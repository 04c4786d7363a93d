"""Keeps what happens to deployments, as it is told, and looks at those that have replicas.

An idle server looks at nothing: where no deployment has a replica, whoever looks waits to be told.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.registry.deployments.directory import Directory, Entry
from stoker.runtime.interface import Runtime
from stoker.runtime.listening import RuntimeListener, Served
from stoker.runtime.observed import DeploymentStats, Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.server.events.series import FINE_S, RATE_STEPS, RECENT, Series, merge, quantile

log = logging.getLogger(__name__)

MOST = 1000
"""Deployments that are remembered; the one that was called longest ago is forgotten first. Each
takes 110 kB."""
_TURN = 200
"""Deployments that are looked at before others have their turn."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All versions of a deployment together, as of now."""

    status: Status
    queue: int
    """Calls that wait or are worked on."""
    replicas: int
    """Those that answer."""
    alive: int
    """And those that start or end."""
    memory_bytes: int
    passes: int
    samples: int
    """Since its replicas began, also those that have ended."""
    versions: tuple[tuple[str, DeploymentStats], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recent:
    """How calls went of late."""

    requests_per_s: float = 0.0
    errors_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    """Of the last minute."""


class History(RuntimeListener):
    def __init__(
        self, directory: Directory, runtime: Runtime, clock: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._clock = clock
        self._series: dict[str, Series] = {}
        self._at_work: dict[str, tuple[int, int]] = {}
        """Those that are looked at → passes and samples when they were last."""
        self._news = asyncio.Event()

    # --- what is told ---

    def served(self, call: Served) -> None:
        now = self._clock()
        series = self._series.get(call.deployment_id) or self._begun(call.deployment_id, now)
        if series is not None:
            series.add(call, now)

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        if status in (Status.STARTING, Status.READY) and spec.deployment not in self._at_work:
            self._at_work[spec.deployment] = (0, 0)
            self._news.set()

    # --- what is looked at ---

    async def run(self) -> None:
        """Look at what has replicas, once in a step, for as long as there is anything."""
        while True:
            if not self._at_work:
                self._news.clear()
                await self._news.wait()
            # In the middle of a step, whose numbers are read at its end.
            await asyncio.sleep(FINE_S - (self._clock() + FINE_S / 2) % FINE_S)
            await self.look()

    async def look(self) -> None:
        """One round."""
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
        now, found = self._clock(), self.observe(entry)
        series = self._series.get(deployment_id) or self._begun(deployment_id, now)
        if series is None:
            return
        passes, samples = self._at_work[deployment_id]
        # Fewer than before: what was counted has begun anew.
        passes = found.passes - passes if found.passes >= passes else found.passes
        samples = found.samples - samples if found.samples >= samples else found.samples
        series.see(
            now,
            queue=found.queue,
            replicas=found.replicas,
            memory_bytes=found.memory_bytes,
            passes=passes,
            samples=samples,
        )
        if found.alive or found.queue:
            self._at_work[deployment_id] = (found.passes, found.samples)
        else:
            del self._at_work[deployment_id]

    def observe(self, entry: Entry) -> Observed:
        """A deployment as it is now. An adapter's replicas are its base's."""
        known = entry.callable_versions | {entry.version_id}
        found = [(one, stats) for one in known if (stats := self._runtime.stats(one))]
        live = dict(found).get(entry.version_id)
        status = live.status if live else Status.IDLE
        if entry.base_id:
            return Observed(
                status=status, queue=0, replicas=0, alive=0, memory_bytes=0, passes=0, samples=0
            )
        replicas = [replica for _, stats in found for replica in stats.replicas]
        return Observed(
            status=status,
            queue=sum(stats.calls for _, stats in found),
            replicas=sum(one.status is Status.READY for one in replicas),
            alive=len(replicas),
            memory_bytes=sum(one.memory_bytes or 0 for one in replicas),
            passes=sum(sum(stats.batches.passes) for _, stats in found),
            samples=sum(stats.batches.samples for _, stats in found),
            versions=tuple(found),
        )

    # --- what is asked ---

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
        """Whether nothing was told of a deployment for a minute, and nothing is looked at."""
        series = self._series.get(deployment_id)
        has_calls = series is not None and self._clock() - series.used_at <= 60 + FINE_S
        return not has_calls and deployment_id not in self._at_work

    def series(self, deployment_id: str) -> Series | None:
        return self._series.get(deployment_id)

    def now(self) -> float:
        return self._clock()

    def _begun(self, deployment_id: str, now: float) -> Series | None:
        # One that was deleted meanwhile is not remembered again.
        if self._directory.find(deployment_id) is None:
            return None
        for gone in [one for one in self._series if self._directory.find(one) is None]:
            del self._series[gone]
        if len(self._series) >= MOST:
            quietest = min(self._series, key=lambda one: self._series[one].used_at)
            del self._series[quietest]
        found = self._series[deployment_id] = Series(now)
        return found
