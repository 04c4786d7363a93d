"""The machines of a fleet, and what a node tells of itself."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.runtime.interface import Runtime
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStats, NodeStatus, Reason
from stoker.runtime.observed import Status as DeploymentStatus
from stoker.runtime.specification import DeploymentSpec
from stoker.server.telemetry import families
from stoker.server.telemetry.recorder import Source, collected_from, of_process
from stoker.server.telemetry.tally import Row, Tally, counts
from stoker.wire.protocol import Batches

NODE = ("node", "id")
"""Names need not be unique."""

Name = tuple[str, str]
Model = tuple[str, str]
"""The account, and what it calls the model."""


def of_nodes(runtime: Runtime) -> Source:
    """Of all nodes that this server knows of, as it finds them; none, where it has no fleet."""

    async def collect() -> Iterable[Metric]:
        found = runtime.nodes()
        machines = [((one.name, one.id), one.machine) for one in found]
        return [*_memory(machines), *_at_work(found)]

    return collect


def _memory(machines: Sequence[tuple[Name, MachineStats]]) -> Iterable[Metric]:
    for what, text in {
        "held": "Memory that replicas on a node have claimed.",
        "budget": "Memory that replicas on a node may hold together.",
        "reserved": "Memory of a node that is kept for `hot` deployments, loaded or not.",
    }.items():
        family = GaugeMetricFamily(f"stoker_node_memory_{what}_bytes", text, labels=NODE)
        for name, machine in machines:
            family.add_metric(name, getattr(machine, f"{what}_bytes"))
        yield family


def _at_work(found: Sequence[NodeStats]) -> Iterable[Metric]:
    leases = GaugeMetricFamily("stoker_node_leases", "Leases that a node has.", labels=NODE)
    replicas = GaugeMetricFamily(
        "stoker_node_replicas", "Replicas on a node, by status.", labels=[*NODE, "status"]
    )
    status = GaugeMetricFamily(
        "stoker_node_status",
        ("Status of a node as this server sees it: 1 for the current status, 0 for the others."),
        labels=[*NODE, "status"],
    )
    for one in found:
        name = (one.name, one.id)
        leases.add_metric(name, len(one.leases))
        there = [replica.status for lease in one.leases for replica in lease.replicas]
        for of in (DeploymentStatus.STARTING, DeploymentStatus.READY, DeploymentStatus.STOPPING):
            replicas.add_metric([*name, of], there.count(of))
        for each in NodeStatus:
            status.add_metric([*name, each], each is one.status)
    return leases, replicas, status


def refused_connections(name: Name, count: Callable[[], int]) -> Source:
    """Counts connections that a node host closed because too many were open."""

    async def collect() -> Iterable[Metric]:
        family = CounterMetricFamily(
            "stoker_node_connections_refused",
            "Connections that a node host closed because too many were open.",
            labels=NODE,
        )
        family.add_metric(name, count())
        return [family]

    return collect


class HostedMetrics(RuntimeListener):
    """Of a node host: its process, its memory, and what runs there, by account and model. The
    versions of a deployment count together, and trials with what they are of.

    Calls are counted by the servers that were asked.
    """

    def __init__(
        self, name: Name, runtime: Runtime, specs: Callable[[], Collection[DeploymentSpec]]
    ) -> None:
        """
        Args:
            name: the node's, and its id.
            specs: what it was told to run, or to be ready to.
        """
        self._name = name
        self._runtime = runtime
        self._specs = specs
        self._tallies: dict[Model, Tally] = {}
        self._sources: list[Source] = []
        self._process = of_process()

    def add(self, source: Source) -> None:
        """Register a source of more metrics."""
        self._sources.append(source)

    def changed(
        self, spec: DeploymentSpec, status: DeploymentStatus, reason: Reason, message: str
    ) -> None:
        if counts(status, reason):
            self._tally(spec).count_change(status, reason)

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        self._tally(spec).count_load(seconds)

    def _tally(self, spec: DeploymentSpec) -> Tally:
        return self._tallies.setdefault(_model(spec), Tally())

    async def collect(self) -> Iterable[Metric]:
        """All metrics as of now. Going through it takes longer, and any thread may do it."""
        collected = await collected_from(self._sources)
        return itertools.chain(
            families.of_replicas(self._rows()),
            [families.build_info()],
            _memory([(self._name, self._runtime.machine())]),
            collected,
            self._process.collect(),
        )

    def _rows(self) -> list[Row]:
        known: dict[Model, list[DeploymentSpec]] = {}
        for spec in self._specs():
            known.setdefault(_model(spec), []).append(spec)
        for gone in self._tallies.keys() - known.keys():
            del self._tallies[gone]
        held = self._runtime.meter.totals()
        return [
            Row(
                entry=known[model][0],
                tally=tally,
                stats=self._together(known[model]),
                held_mib_ms=sum(
                    held.get(one, 0) for one in {spec.deployment for spec in known[model]}
                ),
            )
            for model, tally in self._tallies.items()
        ]

    def _together(self, specs: Sequence[DeploymentSpec]) -> DeploymentStats:
        found = [stats for one in specs if (stats := self._runtime.stats(one.id)) is not None]
        if not found:
            return DeploymentStats(status=DeploymentStatus.IDLE, reason=Reason.CREATED, message="")
        return replace(
            found[0],
            replicas=[replica for one in found for replica in one.replicas],
            calls=sum(one.calls for one in found),
            batches=sum((one.batches for one in found), Batches()),
        )


def _model(spec: DeploymentSpec) -> Model:
    return spec.account_id, spec.model
