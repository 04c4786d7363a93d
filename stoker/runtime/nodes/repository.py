"""Database statements for nodes and leases. All need PostgreSQL."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Interval,
    Row,
    Select,
    bindparam,
    delete,
    false,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from stoker.store import schema
from stoker.store.db import Database, Session
from stoker.store.tables.nodes import Lease, Node

_LEASING = 0x73746F6C
"""Class of PostgreSQL's advisory locks for acquiring leases, one lock per specification."""
PLACING = "stoker_placing"
"""PostgreSQL's notification channel for new leases."""
_NOW = func.clock_timestamp()


# --- statements that run every second, built once: building takes as long as running ---


def _fleet() -> Select[*tuple[Any, ...]]:
    node = [getattr(Node, column.name) for column in Node.__table__.columns]
    is_silent = Node.seen_at < _NOW - bindparam("silent_for", type_=Interval())
    lease = [
        getattr(Lease, name)
        for name in ("generation", "spec_id", "node_id", "deployment_id", "is_kept", "problem")
    ]
    # Joined on `false`, so that each node and each lease is a row of its own.
    return (
        select(*node, is_silent.label("is_silent"), *lease)
        .join_from(Node, Lease, false(), full=True)
        .order_by(Node.id, Lease.generation)
    )


_FLEET = _fleet()


def _heartbeat() -> Select[str, int]:
    beat = (
        update(Node)
        .where(Node.id == bindparam("own_id"), Node.certificate == bindparam("own_certificate"))
        .values(
            seen_at=_NOW,
            is_draining=bindparam("drains"),
            machine=bindparam("report", type_=Node.machine.type),
        )
        .returning(Node.id)
        .cte("beat")
    )
    return (
        select(Lease.spec_id, Lease.generation)
        .select_from(beat)
        .outerjoin(Lease, Lease.node_id == beat.c.id)
    )


_HEARTBEAT = _heartbeat()


async def fleet(database: Database, silent_s: float) -> Sequence[Row[Any]]:
    """Returns all nodes by id, then all leases, oldest first. A row has the columns of a node, or
    those of a lease. `is_silent` is True for a node without a heartbeat for `silent_s` seconds.
    """
    return await database.poll(_FLEET, {"silent_for": timedelta(seconds=silent_s)})


async def write_heartbeat(
    database: Database,
    node_id: str,
    certificate: str,
    machine: Mapping[str, int],
    *,
    is_draining: bool,
) -> dict[str, int] | None:
    """Stores a heartbeat of a node. Returns the node's leases: specification → generation. Returns
    None if the node does not exist or has another certificate.

    Args:
        machine: the node's report of its machine.
    """
    own = {"own_id": node_id, "own_certificate": certificate}
    report = {"drains": is_draining, "report": machine}
    rows = await database.poll(_HEARTBEAT, own | report)
    if not rows:
        return None
    return {row.spec_id: row.generation for row in rows if row.spec_id is not None}


# --- leases ---


async def leases(session: Session, spec_id: str | None = None) -> Sequence[Lease]:
    """Returns the leases of one specification, or of all, oldest first."""
    statement = select(Lease).order_by(Lease.generation)
    if spec_id is not None:
        statement = statement.where(Lease.spec_id == spec_id)
    return (await session.scalars(statement)).all()


async def leases_on(session: Session, node_id: str) -> Sequence[Lease]:
    """Returns the leases of a node."""
    return (await session.scalars(select(Lease).where(Lease.node_id == node_id))).all()


async def lock_specification(session: Session, spec_id: str) -> None:
    """Waits for other transactions that add leases of the specification, and blocks later ones."""
    await session.execute(
        text("SELECT pg_advisory_xact_lock(:kind, hashtext(:spec_id))"),
        {"kind": _LEASING, "spec_id": spec_id},
    )


async def permit_evictions(session: Session, spec_id: str) -> None:
    """Lets other replicas be evicted for the specification's leases that are not placed yet."""
    waiting = (Lease.spec_id == spec_id) & Lease.node_id.is_(None) & ~Lease.may_evict
    await session.execute(update(Lease).where(waiting).values(may_evict=True))


async def notify_placer(session: Session) -> None:
    """Sends a notification on the channel `PLACING`."""
    await session.execute(text(f"NOTIFY {PLACING}"))


async def write_use(
    session: Session, generation: int, *, memory_bytes: int, is_kept: bool, idle_s: float | None
) -> None:
    """Stores the use of a lease.

    Args:
        idle_s: seconds since the last call. None means that the lease may not be withdrawn.
    """
    idle = None if idle_s is None else _NOW - timedelta(seconds=idle_s)
    values = {"memory_bytes": memory_bytes, "is_kept": is_kept, "idle_at": idle}
    mine = update(Lease).where(Lease.generation == generation)
    await session.execute(mine.values(values))


async def clear_is_kept(session: Session, generations: Sequence[int]) -> None:
    """Sets `is_kept` of leases to False."""
    these = update(Lease).where(Lease.generation.in_(generations))
    await session.execute(these.values(is_kept=False))


async def delete_leases(session: Session, generations: Sequence[int]) -> None:
    """Deletes leases by their generations."""
    await session.execute(delete(Lease).where(Lease.generation.in_(generations)))


async def delete_leases_of(session: Session, spec_id: str) -> None:
    """Deletes all leases of a specification."""
    await session.execute(delete(Lease).where(Lease.spec_id == spec_id))


async def delete_leases_on(session: Session, node_id: str) -> None:
    """Deletes all leases of a node."""
    await session.execute(delete(Lease).where(Lease.node_id == node_id))


# --- nodes ---


async def nodes(session: Session) -> Sequence[Node]:
    """Returns all nodes, ordered by id."""
    return (await session.scalars(select(Node).order_by(Node.id))).all()


async def delete_silent_nodes(session: Session, silent_s: float) -> None:
    """Deletes nodes that have sent no heartbeat for longer than `silent_s` seconds."""
    # A node that returns at this moment locks its row, and is not deleted.
    is_silent = Node.seen_at < _NOW - timedelta(seconds=silent_s)
    gone = select(Node.id).where(is_silent).with_for_update(skip_locked=True)
    await session.execute(delete(Node).where(Node.id.in_(gone)))


async def locked_certificate(session: Session, node_id: str) -> str | None:
    """Returns the certificate of the process that is registered as this node, and locks its row.
    Returns None if the node does not exist.
    """
    return await session.scalar(
        select(Node.certificate).where(Node.id == node_id).with_for_update()
    )


async def write_node(session: Session, registered: Mapping[str, Any]) -> None:
    """Adds a node that starts now, or replaces the node with the same id.

    Args:
        registered: the columns that the node host registers.
    """
    values: dict[str, Any] = {
        **registered,
        "is_draining": False,
        "machine": dict[str, int](),
        "schema_revision": schema.head(),
        "started_at": _NOW,
        "seen_at": _NOW,
    }
    row = insert(Node).values(values)
    await session.execute(row.on_conflict_do_update(index_elements=[Node.id], set_=values))


async def delete_node(session: Session, node_id: str, certificate: str) -> None:
    """Deletes a node, unless another process has registered as this node since."""
    mine = (Node.id == node_id) & (Node.certificate == certificate)
    await session.execute(delete(Node).where(mine))
