"""Nodes and leases in the database, which alone decides what may run on which node."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from stoker.runtime.graphics import needs_device
from stoker.runtime.observed import MachineStats
from stoker.runtime.specification import DeploymentSpec
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.deployments import DeploymentVersion
from stoker.store.tables.nodes import Lease, Node

GONE_AFTER_S = 15.0
"""Seconds without a heartbeat after which a node counts as lost, as with servers."""
_LEASING = 0x73746F6C
"""Class of PostgreSQL's advisory locks for acquiring leases, one lock per specification."""
PLACING = "stoker_placing"
"""PostgreSQL's notification channel for `hint`."""
_NOW = func.clock_timestamp()


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    id: str
    name: str
    address: str
    certificate: str
    pid: int
    version: str
    python: str
    is_draining: bool
    machine: MachineStats
    """State as of `seen_at`, without the claims that wait there."""
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, kw_only=True)
class NodeLease:
    """A lease of a node, or one that waits to be placed."""

    spec_id: str
    node_id: str
    """Id of the node. Empty while the lease waits to be placed."""
    deployment_id: str
    generation: int
    is_kept: bool = False
    """True if the lease waits for a node without a time limit."""
    problem: str = ""
    """Reason that it waits."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """Use of a lease by its node, for the placement of other leases."""

    memory_bytes: int
    is_kept: bool
    """True if it stays loaded as long as memory is available."""
    idle_at: float | None
    """Time of the last call, by the node's own clock. None means that the lease may not be
    withdrawn.
    """


async def nodes_of(session: Session) -> list[NodeRecord]:
    """Returns all nodes that were not found lost, ordered by id."""
    rows = await session.scalars(select(Node).order_by(Node.id))
    return [
        NodeRecord(
            id=row.id,
            name=row.name,
            address=row.address,
            certificate=row.certificate,
            pid=row.pid,
            version=row.version,
            python=row.python,
            is_draining=row.is_draining,
            machine=_machine_of(row.machine),
            started_at=row.started_at,
            seen_at=row.seen_at,
        )
        for row in rows
    ]


def _machine_of(said: Mapping[str, int]) -> MachineStats:
    """Converts a node's report of its machine. All zero before its first heartbeat."""
    return MachineStats(
        cores=said.get("cores", 0),
        total_bytes=said.get("total_bytes", 0),
        budget_bytes=said.get("budget_bytes", 0),
        held_bytes=said.get("held_bytes", 0),
        used_bytes=said.get("used_bytes", 0),
        reserved_bytes=said.get("reserved_bytes", 0),
    )


async def leases_of(session: Session, spec_id: str | None = None) -> list[NodeLease]:
    """Returns the leases of one specification, or of all, oldest first."""
    statement = select(Lease).order_by(Lease.generation)
    if spec_id is not None:
        statement = statement.where(Lease.spec_id == spec_id)
    return [
        NodeLease(
            spec_id=row.spec_id,
            node_id=row.node_id or "",
            deployment_id=row.deployment_id,
            generation=row.generation,
            is_kept=row.is_kept and row.node_id is None,
            problem=row.problem or "",
        )
        for row in await session.scalars(statement)
    ]


async def take(
    database: Database,
    spec: DeploymentSpec,
    choose: Callable[[Sequence[NodeLease]], Sequence[str]],
    *,
    are_wishes: bool = False,
    may_evict: bool = True,
) -> list[NodeLease]:
    """Adds one lease for each node that `choose` names. Returns all leases of the specification.

    Concurrent calls for the same specification run one after another, so each sees the leases of
    the earlier ones. A version that was deleted gets no leases. Other servers may not know of the
    deletion yet.

    Args:
        choose: gets the existing leases.
        are_wishes: True if a placer places the leases. The nodes are preferences then, and an empty
            name means any node.
        may_evict: True if other replicas may be evicted for leases that are not placed yet, from
            now on.
    """
    async with database.transaction() as session:
        await session.execute(
            text("SELECT pg_advisory_xact_lock(:kind, hashtext(:spec_id))"),
            {"kind": _LEASING, "spec_id": spec.id},
        )
        # A deletion of either row waits for this lock, and deletes the lease too.
        lock_options: dict[str, Any] = {"with_for_update": {"read": True}}
        if spec.version and not await session.get(DeploymentVersion, spec.version, **lock_options):
            return []
        if are_wishes and may_evict:
            waiting = (Lease.spec_id == spec.id) & Lease.node_id.is_(None) & ~Lease.may_evict
            await session.execute(update(Lease).where(waiting).values(may_evict=True))
        for node_id in choose(await leases_of(session, spec.id)):
            if are_wishes or await session.get(Node, node_id, **lock_options):
                session.add(
                    Lease(
                        spec_id=spec.id,
                        node_id=None if are_wishes else node_id,
                        deployment_id=spec.deployment,
                        created_at=db.now(),
                        memory_bytes=spec.memory_bytes,
                        needs_device=needs_device(spec),
                        prefers=(node_id or None) if are_wishes else None,
                        may_evict=may_evict,
                        is_kept=spec.readiness.stays_loaded or spec.min_replicas > 0,
                    )
                )
                await session.flush()
        return await leases_of(session, spec.id)


async def hint(database: Database) -> None:
    """Notifies the placer of a new lease. Without the notification it would find the lease a little
    later.
    """
    async with database.transaction() as session:
        await session.execute(text(f"NOTIFY {PLACING}"))


async def tell_use(database: Database, used: Mapping[int, Use], now: float) -> None:
    """Stores the use of leases, by their generations.

    Args:
        now: the current time of the clock of `Use.idle_at`.
    """
    async with database.transaction() as session:
        for generation, use in sorted(used.items()):
            idle = None if use.idle_at is None else _NOW - timedelta(seconds=now - use.idle_at)
            values = {"memory_bytes": use.memory_bytes, "is_kept": use.is_kept, "idle_at": idle}
            mine = update(Lease).where(Lease.generation == generation)
            await session.execute(mine.values(values))


async def give_back(database: Database, generations: Sequence[int]) -> None:
    async with database.transaction() as session:
        await session.execute(delete(Lease).where(Lease.generation.in_(generations)))


async def keep_no_more(database: Database, generations: Sequence[int]) -> None:
    """Clears `is_kept`, so that leases that wait long for a node are dropped."""
    async with database.transaction() as session:
        these = update(Lease).where(Lease.generation.in_(generations))
        await session.execute(these.values(is_kept=False))


async def revoke(database: Database, spec_id: str) -> None:
    """Deletes all leases of a deleted specification."""
    async with database.transaction() as session:
        await session.execute(delete(Lease).where(Lease.spec_id == spec_id))


class Watch:
    """Polls nodes and leases for one gateway.

    After a gap in its polls, it deletes no silent node for `GONE_AFTER_S`, as with servers.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._last = -math.inf
        self._since = math.inf
        self._lock = asyncio.Lock()

    async def look(self) -> tuple[list[NodeRecord], list[NodeLease]]:
        async with self._lock:
            now = self._clock()
            if now - self._last > GONE_AFTER_S / 3:
                self._since = now
            if now - self._since >= GONE_AFTER_S:
                await self._forget_gone()
            async with self._database.reading() as session:
                nodes_and_leases = await nodes_of(session), await leases_of(session)
            self._last = now
            return nodes_and_leases

    async def _forget_gone(self) -> None:
        silent = Node.seen_at < _NOW - timedelta(seconds=GONE_AFTER_S)
        async with self._database.reading() as session:
            if await session.scalar(select(Node.id).where(silent).limit(1)) is None:
                return
        async with self._database.transaction() as session:
            # A node that returns at this moment locks its row, and is not deleted.
            gone = select(Node.id).where(silent).with_for_update(skip_locked=True)
            await session.execute(delete(Node).where(Node.id.in_(gone)))


class SupersededError(Exception):
    """Raised if another process has registered as this node since."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Data that a node host registers at its start."""

    id: str
    name: str
    address: str
    certificate: str
    pid: int
    version: str
    python: str

    async def begin(self, database: Database) -> None:
        """Registers the node without leases. The replicas of its previous process have ended with
        that process.
        """
        async with database.transaction() as session:
            await session.execute(delete(Lease).where(Lease.node_id == self.id))
            await self._write(session)

    async def beat(
        self, database: Database, machine: MachineStats, *, is_draining: bool
    ) -> dict[str, int]:
        """Sends a heartbeat. Returns the node's leases: specification → generation.

        Raises `SupersededError`.
        """
        values: dict[str, Any] = {
            "seen_at": _NOW,
            "is_draining": is_draining,
            "machine": {
                "cores": machine.cores,
                "total_bytes": machine.total_bytes,
                "budget_bytes": machine.budget_bytes,
                "held_bytes": machine.held_bytes,
                "used_bytes": machine.used_bytes,
                "reserved_bytes": machine.reserved_bytes,
            },
        }
        async with database.transaction() as session:
            mine = update(Node).where(Node.id == self.id).values(values).returning(Node.certificate)
            shown = await session.scalar(mine)
            if shown is None:
                # The node was silent for too long, and its leases were deleted.
                await self._write(session)
            elif shown != self.certificate:
                raise SupersededError
            rows = await session.scalars(select(Lease).where(Lease.node_id == self.id))
            return {row.spec_id: row.generation for row in rows}

    async def end(self, database: Database) -> None:
        async with database.transaction() as session:
            mine = (Node.id == self.id) & (Node.certificate == self.certificate)
            await session.execute(delete(Node).where(mine))

    async def _write(self, session: Session) -> None:
        values: dict[str, Any] = {
            **vars(self),
            "is_draining": False,
            "machine": dict[str, int](),
            "started_at": _NOW,
            "seen_at": _NOW,
        }
        row = insert(Node).values(values)
        await session.execute(row.on_conflict_do_update(index_elements=[Node.id], set_=values))
