"""Metrics of the nodes of a fleet, and the metrics that a node reports about itself."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.platform.resource import Source
from stoker.runtime.interface import Runtime
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStats, NodeStatus, Reason
from stoker.runtime.observed import Status as DeploymentStatus
from stoker.runtime.specification import DeploymentSpec
from stoker.server.telemetry import families
from stoker.server.telemetry.recorder import collected_from, of_process
from stoker.server.telemetry.tally import DeploymentTally, MetricsRow, counts
from stoker.wire.passes import Batches

NODE = ("node", "id")
"""Labels of a node. Node names need not be unique."""

Name = tuple[str, str]
Model = tuple[str, str]
"""Account and the account's name for the model."""


def of_nodes(runtime: Runtime) -> Source:
    """Returns a source with metrics of all nodes, as this server sees them. Without a fleet, it has
    only the server's own GPUs.
    """

    async def collect() -> Iterable[Metric]:
        nodes = runtime.nodes()
        machines = [((node.name, node.id), node.machine) for node in nodes]
        devices = of_devices(machines) if nodes else of_devices([(("", ""), runtime.machine())])
        return [*_memory(machines), *devices, *_at_work(nodes)]

    return collect


def _memory(machines: Sequence[tuple[Name, MachineStats]]) -> Iterable[Metric]:
    for measure, text in {
        "held": "Memory that replicas on a node have claimed.",
        "budget": "Memory that replicas on a node may hold together.",
        "reserved": "Memory of a node that is kept for `hot` deployments, loaded or not.",
    }.items():
        family = GaugeMetricFamily(f"stoker_node_memory_{measure}_bytes", text, labels=NODE)
        for name, machine in machines:
            family.add_metric(name, getattr(machine, f"{measure}_bytes"))
        yield family


def of_devices(machines: Sequence[tuple[Name, MachineStats]]) -> Iterable[Metric]:
    """Yields the memory of each GPU, and its prepared workers. The labels of the node are empty
    without a fleet.
    """
    labels = [*NODE, "device", "name", "uuid"]
    total, budget, held, used, other = (
        GaugeMetricFamily(f"stoker_device_memory_{measure}_bytes", text, labels=labels)
        for measure, text in (
            ("total", "Memory of a GPU or of its MIG instance."),
            ("budget", "Memory of a GPU that replicas may claim together. 0 if it disappeared."),
            ("held", "Memory of a GPU that replicas and prepared workers have claimed."),
            ("used", "Memory of a GPU in use by all processes, as the driver reports it."),
            ("other", "Memory of a GPU held by processes other than replicas."),
        )
    )
    workers = GaugeMetricFamily(
        "stoker_device_prepared_workers",
        "Processes that have opened a GPU and wait for a model.",
        labels=labels,
    )
    for node, machine in machines:
        for device in machine.devices:
            names = (*node, f"cuda:{device.index}", device.name, device.uuid)
            total.add_metric(names, device.total_bytes)
            budget.add_metric(names, device.budget_bytes)
            held.add_metric(names, device.held_bytes)
            other.add_metric(names, device.other_bytes)
            workers.add_metric(names, device.prepared_workers)
            if device.used_bytes is not None:
                used.add_metric(names, device.used_bytes)
    return total, budget, held, used, other, workers


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
    for node in found:
        name = (node.name, node.id)
        leases.add_metric(name, len(node.leases))
        statuses = [replica.status for lease in node.leases for replica in lease.replicas]
        for of in (DeploymentStatus.STARTING, DeploymentStatus.READY, DeploymentStatus.STOPPING):
            replicas.add_metric([*name, of], statuses.count(of))
        for each in NodeStatus:
            status.add_metric([*name, each], each is node.status)
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
    """Metrics of a node host: its process, its memory, and its replicas by account and model. The
    versions of a deployment count together. A trial counts with its deployment.

    Calls are counted by the servers that received them.
    """

    def __init__(
        self, name: Name, runtime: Runtime, specs: Callable[[], Collection[DeploymentSpec]]
    ) -> None:
        """
        Args:
            name: name and id of the node.
            specs: returns the deployments that the node must run or be ready to run.
        """
        self._name = name
        self._runtime = runtime
        self._specs = specs
        self._tallies: dict[Model, DeploymentTally] = {}
        self._sources: list[Source] = []
        self._process = of_process()

    def add(self, source: Source) -> None:
        """Registers a source of additional metrics."""
        self._sources.append(source)

    def changed(
        self, spec: DeploymentSpec, status: DeploymentStatus, reason: Reason, message: str
    ) -> None:
        if counts(status, reason):
            self._tally(spec).count_change(status, reason)

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        self._tally(spec).count_load(seconds)

    def _tally(self, spec: DeploymentSpec) -> DeploymentTally:
        return self._tallies.setdefault(_model(spec), DeploymentTally())

    async def collect(self) -> Iterable[Metric]:
        """Returns all current metrics. Iterating over them takes longer and may happen in any
        thread.
        """
        collected = await collected_from(self._sources)
        return itertools.chain(
            families.of_replicas(self._rows()),
            [families.build_info()],
            _memory([(self._name, self._runtime.machine())]),
            of_devices([(self._name, self._runtime.machine())]),
            collected,
            self._process.collect(),
        )

    def _rows(self) -> list[MetricsRow]:
        known: dict[Model, list[DeploymentSpec]] = {}
        for spec in self._specs():
            known.setdefault(_model(spec), []).append(spec)
        for gone in self._tallies.keys() - known.keys():
            del self._tallies[gone]
        held_totals = self._runtime.meter.totals()
        return [
            MetricsRow(
                entry=known[model][0],
                tally=tally,
                stats=self._together(known[model]),
                held_mib_ms=sum(
                    held_totals.get(deployment_id, 0)
                    for deployment_id in {spec.deployment for spec in known[model]}
                ),
            )
            for model, tally in self._tallies.items()
        ]

    def _together(self, specs: Sequence[DeploymentSpec]) -> DeploymentStats:
        known_stats = [
            stats for item in specs if (stats := self._runtime.stats(item.id)) is not None
        ]
        if not known_stats:
            return DeploymentStats(status=DeploymentStatus.IDLE, reason=Reason.CREATED, message="")
        return replace(
            known_stats[0],
            replicas=[replica for item in known_stats for replica in item.replicas],
            calls=sum(item.calls for item in known_stats),
            batches=sum((item.batches for item in known_stats), Batches()),
        )


def _model(spec: DeploymentSpec) -> Model:
    return spec.account_id, spec.model
