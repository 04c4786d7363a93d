"""Nodes of a fleet with their leases and replicas."""

from collections.abc import Sequence
from datetime import UTC, datetime

from fastapi import Response

from stoker.base import ids
from stoker.platform.web.lists import Page, json_page
from stoker.runtime.observed import LeaseStats, NodeStats, ReplicaStats
from stoker.server.events import schemas
from stoker.server.events.machine import devices, memory, waiting
from stoker.server.events.messages import Visibility

_ALL = Visibility(None)


async def listed(found: Sequence[NodeStats]) -> Response:
    """Returns all nodes in one page, because a fleet has few machines. A node may have many leases,
    so other tasks may run after each.
    """
    return await json_page(Page(found, has_more=False), _node)


def _node(node: NodeStats) -> schemas.Node:
    return schemas.Node(
        id=node.id,
        name=node.name,
        address=node.address,
        status=node.status,
        problem=node.problem or None,
        pid=node.pid,
        version=node.version,
        python=node.python,
        started_at=node.started_at,
        seen_at=node.seen_at,
        cores=node.machine.cores,
        processor=node.machine.processor,
        memory=memory(node.machine),
        devices=devices(node.machine),
        leases=[_lease(lease) for lease in node.leases],
        waiting=waiting(node.machine, _ALL),
    )


def _lease(lease: LeaseStats) -> schemas.Lease:
    return schemas.Lease(
        spec_id=lease.spec_id,
        deployment_id=lease.deployment_id,
        account_id=lease.account_id,
        model=lease.model,
        generation=lease.generation,
        replicas=[_replica(replica) for replica in lease.replicas],
    )


def _replica(replica: ReplicaStats) -> schemas.NodeReplica:
    made_at = ids.made_at(replica.id)
    return schemas.NodeReplica(
        id=replica.id,
        status=replica.status,
        engine=replica.engine,
        pid=replica.pid,
        outstanding=replica.outstanding,
        memory_bytes=replica.memory_bytes,
        device=replica.device,
        device_bytes=replica.device_bytes,
        device_held_bytes=replica.device_held_bytes,
        started_at=datetime.fromtimestamp(made_at, UTC) if made_at else None,
    )
