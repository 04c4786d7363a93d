"""Counts events in plain numbers. They are converted to text only when the metrics are
requested.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric

from stoker.base.fairness import CURRENT_CALLER
from stoker.platform.resource import Source
from stoker.registry.deployments.directory import Directory
from stoker.runtime.interface import Runtime
from stoker.runtime.listening import RuntimeListener, Served
from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.server.telemetry import families
from stoker.server.telemetry.tally import Answers, DeploymentTally, MetricsRow, counts
from stoker.wire.passes import Batches

log = logging.getLogger(__name__)

NO_ROUTE = "none"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"


def of_process() -> CollectorRegistry:
    """Returns a registry with a process's own metrics."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


async def collected_from(sources: Sequence[Source]) -> list[Metric]:
    """Returns the metrics of all sources. Logs and skips a source that fails."""
    collected: list[Metric] = []
    for source in sources:
        try:
            collected += await source()
        except Exception:
            log.exception("metrics of a resource could not be collected; continuing without them")
    return collected


class Metrics(RuntimeListener):
    """Metrics of this process. A deployment has series from its first start until it is deleted."""

    def __init__(self, directory: Directory, runtime: Runtime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._tallies: dict[str, DeploymentTally] = {}
        self._answers: dict[tuple[str, str], Answers] = {}
        self._sources: list[Source] = []
        self._process = of_process()

    def add(self, source: Source) -> None:
        """Registers a source of a resource's own metrics."""
        self._sources.append(source)

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        if counts(status, reason):
            self._tally(spec.deployment).count_change(status, reason)

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        self._tally(spec.deployment).count_load(seconds)

    def served(self, call: Served) -> None:
        tally = self._tallies.get(call.deployment_id) or self._tally(call.deployment_id)
        # The listener runs in the context of the task that made the call.
        tally.add(call, CURRENT_CALLER.get().tier)

    def answered(self, route: str | None, method: str, status: int, seconds: float) -> None:
        """Counts a finished HTTP request. `route` is the route's template, because clients choose
        paths.
        """
        answers = self._answers_to(route or NO_ROUTE, method)
        answers.statuses[status] += 1
        answers.seconds.observe(seconds)

    def answered_elsewhere(
        self,
        route: str,
        method: str,
        statuses: Mapping[int, int],
        counts: Sequence[int],
        seconds: float,
    ) -> None:
        """Counts requests that a worker process has finished.

        Args:
            counts: number of requests per bucket of the histogram of durations.
            seconds: sum of the durations.
        """
        answers = self._answers_to(route, method)
        answers.statuses.update(statuses)
        answers.seconds.merge(counts, seconds)

    def _answers_to(self, route: str, method: str) -> Answers:
        key = (route, method if method in METHODS else OTHER_METHOD)
        answers = self._answers.get(key)
        if answers is None:
            answers = self._answers[key] = Answers()
        return answers

    async def collect(self) -> Iterable[Metric]:
        """Returns all current metrics. Iterating over them takes longer and may happen in any
        thread.
        """
        collected = await collected_from(self._sources)
        rows, statuses = self._rows(), self._counted_statuses()
        answers = dict(self._answers)

        return itertools.chain(
            families.of_calls(rows),
            families.of_replicas(rows),
            [families.of_statuses(statuses), families.build_info()],
            families.of_http(answers),
            collected,
            self._process.collect(),
        )

    def _tally(self, deployment_id: str) -> DeploymentTally:
        tally = self._tallies.get(deployment_id)
        if tally is None:
            tally = DeploymentTally()
            # A deployment that was deleted meanwhile gets no tally.
            if self._directory.find(deployment_id):
                self._forget_deleted()
                self._tallies[deployment_id] = tally
        return tally

    def _forget_deleted(self) -> None:
        for deployment_id in [
            known_id for known_id in self._tallies if not self._directory.find(known_id)
        ]:
            del self._tallies[deployment_id]

    def _rows(self) -> list[MetricsRow]:
        self._forget_deleted()
        held_totals = self._runtime.meter.totals()
        rows: list[MetricsRow] = []
        for deployment_id, tally in self._tallies.items():
            entry = self._directory.find(deployment_id)
            stats = self._runtime.stats(entry.version_id) if entry else None
            if entry and stats:
                if entry.base_id:
                    # An adapter has its own calls, but its replicas belong to its base.
                    stats = replace(stats, replicas=(), calls=0, batches=Batches())
                mib_ms = held_totals.get(deployment_id, 0)
                rows.append(MetricsRow(entry=entry, tally=tally, stats=stats, held_mib_ms=mib_ms))
        return rows

    def _counted_statuses(self) -> Counter[Status]:
        all_stats = (self._runtime.stats(entry.version_id) for entry in self._directory.entries())
        return Counter(stats.status if stats else Status.IDLE for stats in all_stats)
