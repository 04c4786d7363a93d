"""Database statements for the placement of leases."""

from collections.abc import Sequence

from sqlalchemy import delete, func, select, update

from stoker.runtime.ray.reconcile import LeaseRow
from stoker.store.db import Session
from stoker.store.tables.nodes import Lease, Node

_LOCK = 0x73746F6B03
"""PostgreSQL's advisory lock of the working placer."""
WAIT_FOR_LOCK = f"SELECT pg_advisory_lock({_LOCK})"
"""Statement that waits until no other connection has the placer's lock, and acquires it."""


async def rows(session: Session) -> list[LeaseRow]:
    """Returns all leases."""
    now = func.clock_timestamp()
    idle_s = func.extract("epoch", now - Lease.idle_at)
    age_s = func.extract("epoch", now - Lease.created_at)
    records = await session.execute(select(Lease, idle_s, age_s))
    return [
        LeaseRow(
            generation=lease.generation,
            spec_id=lease.spec_id,
            node_id=lease.node_id,
            memory_bytes=lease.memory_bytes,
            needs_device=lease.needs_device,
            prefers=lease.prefers,
            may_evict=lease.may_evict,
            is_kept=lease.is_kept,
            idle_s=max(0.0, float(idle)) if lease.idle_at else None,
            age_s=float(age),
            problem=lease.problem,
        )
        for lease, idle, age in records
    ]


async def accepting_nodes(session: Session) -> set[str]:
    """Returns the ids of the nodes that accept leases."""
    return {*await session.scalars(select(Node.id).where(~Node.is_draining))}


async def write_problem(session: Session, generation: int, problem: str | None) -> None:
    """Stores the reason why a lease waits."""
    mine = update(Lease).where(Lease.generation == generation)
    await session.execute(mine.values(problem=problem))


async def place(session: Session, generation: int, node_id: str) -> None:
    """Stores the node of a lease, which then waits no longer."""
    mine = update(Lease).where(Lease.generation == generation)
    await session.execute(mine.values(node_id=node_id, problem=None))


async def delete_leases(
    session: Session, generations: Sequence[int], *, if_idle: Sequence[int]
) -> None:
    """Deletes leases by their generations.

    Args:
        if_idle: leases that are deleted only if they are idle now. A caller may have used them
            since.
    """
    idle = Lease.generation.in_(if_idle) & Lease.idle_at.is_not(None)
    await session.execute(delete(Lease).where(idle | Lease.generation.in_(generations)))
