"""What several nodes tell, as one."""

from collections.abc import Sequence
from itertools import chain

from stoker.runtime.interface import (
    DeploymentSpec,
    DeploymentStats,
    MachineStats,
    Reason,
    Status,
)
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
) -> DeploymentStats:
    """Of a deployment that several nodes may run.

    Args:
        told: by those that know it.
        is_awaited: whether a node is looked for.
        problem: why none is found.
    """
    most = max(1, spec.max_replicas, spec.min_replicas)
    best = min(told, key=lambda one: _BEST_FIRST.index(one.status), default=None)
    if best is None or (running and best.status is Status.STOPPED):
        status, reason, message = _unplaced(running=running, is_awaited=is_awaited, problem=problem)
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
    """All of them together."""
    return MachineStats(
        cores=sum(one.cores for one in machines),
        processor=", ".join(sorted({one.processor for one in machines if one.processor})),
        total_bytes=sum(one.total_bytes for one in machines),
        budget_bytes=sum(one.budget_bytes for one in machines),
        held_bytes=sum(one.held_bytes for one in machines),
        reserved_bytes=sum(one.reserved_bytes for one in machines),
        waiting=[*chain.from_iterable(one.waiting for one in machines)],
    )
