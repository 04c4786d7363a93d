"""What several nodes tell, as one."""

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
from stoker.wire.protocol import Batches

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
    """Of a deployment that several nodes may run.

    Args:
        told: by those that know it.
        is_awaited: whether a node is looked for.
        problem: why none is found.
        is_hopeless: whether none will be, as things are.
    """
    most = max(1, spec.max_replicas, spec.min_replicas)
    best = min(told, key=lambda one: _BEST_FIRST.index(one.status), default=None)
    if best is None or (running and best.status is Status.STOPPED):
        status, reason, message = _unplaced(running=running, is_awaited=is_awaited, problem=problem)
        if status is Status.FAILED and not is_hopeless:
            status = Status.STARTING
    else:
        status, reason, message = best.status, best.reason, best.message
    if not running and not any(one.replicas for one in told):
        status = Status.STOPPED
    return DeploymentStats(
        status=status,
        reason=reason,
        message=message,
        max_replicas=most,
        memory_bytes=max((one.memory_bytes for one in told), default=spec.memory_bytes),
        replicas=[*chain.from_iterable(one.replicas for one in told)],
        calls=sum(one.calls for one in told),
        batches=sum((one.batches for one in told), Batches()),
    )


def _unplaced(*, running: bool, is_awaited: bool, problem: str) -> tuple[Status, Reason, str]:
    """Of what no node has."""
    if not running:
        return Status.STOPPED, Reason.STOPPED_BY_USER, "Stopped."
    if problem:
        return Status.FAILED, Reason.INSUFFICIENT_MEMORY, problem
    if is_awaited:
        return Status.STARTING, Reason.KEPT_LOADED, "It waits for a node."
    return Status.IDLE, Reason.CREATED, "Waiting for its first request."


def machine_of(machines: Sequence[MachineStats]) -> MachineStats:
    """Adds up the machines of several nodes. Nodes on one machine share its cores and memory."""
    hosts = {machine.host or str(number): machine for number, machine in enumerate(machines)}
    return MachineStats(
        cores=sum(machine.cores for machine in hosts.values()),
        processor=", ".join(sorted({one.processor for one in machines if one.processor})),
        total_bytes=sum(machine.total_bytes for machine in hosts.values()),
        budget_bytes=sum(one.budget_bytes for one in machines),
        held_bytes=sum(one.held_bytes for one in machines),
        used_bytes=sum(one.used_bytes for one in machines),
        reserved_bytes=sum(one.reserved_bytes for one in machines),
        waiting=[*chain.from_iterable(one.waiting for one in machines)],
        devices=[*chain.from_iterable(one.devices for one in machines)],
    )


def node_of(
    node: NodeClient, held: Sequence[NodeLease], specs: Mapping[str, DeploymentSpec]
) -> NodeStats:
    """One of them, as this gateway finds it.

    Args:
        held: its leases.
        specs: by id, those that this gateway knows.
    """
    record = node.record
    # What the database says of it stays true where this gateway hears nothing.
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
        leases=[_lease_of(node, one, specs.get(one.spec_id)) for one in held],
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
