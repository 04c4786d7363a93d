"""Combines the reports of several nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from stoker.runtime.nodes.leases import NodeLease
from stoker.runtime.nodes.node_client import NodeClient
from stoker.runtime.observed import (
    DeploymentStats,
    LeaseStats,
    MachineStats,
    NodeStats,
    NodeStatus,
    Reason,
    Status,
)
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.passes import Batches

_BEST_FIRST = (
    Status.READY,
    Status.STARTING,
    Status.FAILED,
    Status.STOPPING,
    Status.IDLE,
    Status.STOPPED,
)


def stats_of(
    spec: DeploymentSpec,
    told: Sequence[DeploymentStats],
    *,
    running: bool,
    is_awaited: bool,
    problem: str = "",
    is_hopeless: bool = True,
) -> DeploymentStats:
    """Returns the stats of a deployment that several nodes may run.

    Args:
        told: reports of the nodes that know it.
        is_awaited: True if a node is being searched for.
        problem: reason that no node is found.
        is_hopeless: True if no node will be found in the current state.
    """
    most = max(1, spec.max_replicas, spec.min_replicas)
    best = min(told, key=lambda stats: _BEST_FIRST.index(stats.status), default=None)
    if best is None or (running and best.status is Status.STOPPED):
        status, reason, message = _unplaced(running=running, is_awaited=is_awaited, problem=problem)
        if status is Status.FAILED and not is_hopeless:
            status = Status.STARTING
    else:
        status, reason, message = best.status, best.reason, best.message
    if not running and not any(stats.replicas for stats in told):
        status = Status.STOPPED
    return DeploymentStats(
        status=status,
        reason=reason,
        message=message,
        max_replicas=most,
        memory_bytes=max((stats.memory_bytes for stats in told), default=spec.memory_bytes),
        replicas=[*chain.from_iterable(stats.replicas for stats in told)],
        calls=sum(stats.calls for stats in told),
        batches=sum((stats.batches for stats in told), Batches()),
    )


def _unplaced(*, running: bool, is_awaited: bool, problem: str) -> tuple[Status, Reason, str]:
    """Returns the state of a deployment that no node runs."""
    if not running:
        return Status.STOPPED, Reason.STOPPED_BY_USER, "Stopped."
    if problem:
        return Status.FAILED, Reason.INSUFFICIENT_MEMORY, problem
    if is_awaited:
        return Status.STARTING, Reason.KEPT_LOADED, "Waiting for a node."
    return Status.IDLE, Reason.CREATED, "Waiting for its first request."


def machine_of(machines: Sequence[MachineStats]) -> MachineStats:
    """Adds up the machines of several nodes. Nodes on one machine share its cores and memory."""
    hosts = {machine.host or str(number): machine for number, machine in enumerate(machines)}
    return MachineStats(
        cores=sum(machine.cores for machine in hosts.values()),
        processor=", ".join(
            sorted({node_machine.processor for node_machine in machines if node_machine.processor})
        ),
        total_bytes=sum(machine.total_bytes for machine in hosts.values()),
        budget_bytes=sum(node_machine.budget_bytes for node_machine in machines),
        held_bytes=sum(node_machine.held_bytes for node_machine in machines),
        used_bytes=sum(node_machine.used_bytes for node_machine in machines),
        reserved_bytes=sum(node_machine.reserved_bytes for node_machine in machines),
        waiting=[*chain.from_iterable(node_machine.waiting for node_machine in machines)],
        devices=[*chain.from_iterable(node_machine.devices for node_machine in machines)],
        device_problem=" ".join(
            node_machine.device_problem for node_machine in machines if node_machine.device_problem
        ),
        sandbox_openings=sorted({text for node in machines for text in node.sandbox_openings}),
    )


def node_of(
    node: NodeClient, held: Sequence[NodeLease], specs: Mapping[str, DeploymentSpec]
) -> NodeStats:
    """Returns the stats of a node, as seen by this gateway.

    Args:
        held: its leases.
        specs: the specifications that this gateway knows, by id.
    """
    record = node.record
    # The data in the database stays valid while this gateway receives no reports.
    machine = replace(record.machine, processor=node.machine.processor)
    return NodeStats(
        id=record.id,
        name=record.name,
        address=record.address,
        status=_status_of(node),
        pid=record.pid,
        version=record.version,
        python=record.python,
        started_at=record.started_at,
        seen_at=record.seen_at,
        machine=node.machine if node.is_connected else machine,
        leases=[_lease_of(node, lease, specs.get(lease.spec_id)) for lease in held],
        problem=node.problem,
    )


def _status_of(node: NodeClient) -> NodeStatus:
    if not node.is_connected:
        return NodeStatus.UNREACHABLE
    if node.is_draining:
        return NodeStatus.DRAINING
    return NodeStatus.READY if node.is_ready else NodeStatus.STARTING


def _lease_of(node: NodeClient, held: NodeLease, spec: DeploymentSpec | None) -> LeaseStats:
    stats = node.stats.get(held.spec_id)
    return LeaseStats(
        spec_id=held.spec_id,
        deployment_id=held.deployment_id,
        account_id=spec.account_id if spec else None,
        model=spec.model if spec else None,
        generation=held.generation,
        replicas=stats.replicas if stats else (),
    )
