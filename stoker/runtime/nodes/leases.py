"""What the database knows of nodes and leases: it alone says what may run where."""

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
"""As of servers: a node that has told nothing for so long is gone."""
_LEASING = 0x73746F6C
"""PostgreSQL's advisory locks of those who take leases, one for each specification."""
PLACING = "stoker_placing"
"""PostgreSQL's channel for `hint`."""
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
    """As of `seen_at`, without what waits there."""
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, kw_only=True)
class NodeLease:
    """A lease that a node has, or will have."""

    spec_id: str
    node_id: str
    """Nothing: it waits to be placed."""
    deployment_id: str
    generation: int
    is_kept: bool = False
    """It waits for as long as it takes."""
    problem: str = ""
    """Why it waits."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a node makes of a lease, for whoever places others."""

    memory_bytes: int
    is_kept: bool
    """It stays loaded as long as there is room."""
    idle_at: float | None
    """Since when nobody has called it, by the node's own clock; None: it may not be taken away."""


async def nodes_of(session: Session) -> list[NodeRecord]:
    """All that have not been found gone, in the order of their ids."""
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
    """What a node has told of its machine; nothing, before its first heartbeat."""
    return MachineStats(
        cores=said.get("cores", 0),
        total_bytes=said.get("total_bytes", 0),
        budget_bytes=said.get("budget_bytes", 0),
        held_bytes=said.get("held_bytes", 0),
        used_bytes=said.get("used_bytes", 0),
        reserved_bytes=said.get("reserved_bytes", 0),
    )


async def leases_of(session: Session, spec_id: str | None = None) -> list[NodeLease]:
    """Of one specification, or all; the oldest first."""
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
    """The leases of a specification, with one more for each of the nodes that `choose` names.

    Whoever else wants some at the same time comes before or after, and is shown what there is then.
    There are none of a version that was deleted, which other servers may not have heard of yet.

    Args:
        choose: gets the leases that there are.
        are_wishes: somebody else places them, and the nodes are what would be best; where nothing
            is named, any.
        may_evict: what is not placed yet may have others go for it, from now on.
    """
    async with database.transaction() as session:
        await session.execute(
            text("SELECT pg_advisory_xact_lock(:kind, hashtext(:spec_id))"),
            {"kind": _LEASING, "spec_id": spec.id},
        )
        # Whoever deletes either waits for this, and takes the lease along.
        kept: dict[str, Any] = {"with_for_update": {"read": True}}
        if spec.version and not await session.get(DeploymentVersion, spec.version, **kept):
            return []
        if are_wishes and may_evict:
            waiting = (Lease.spec_id == spec.id) & Lease.node_id.is_(None) & ~Lease.may_evict
            await session.execute(update(Lease).where(waiting).values(may_evict=True))
        for node_id in choose(await leases_of(session, spec.id)):
            if are_wishes or await session.get(Node, node_id, **kept):
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
    """Tell whoever places leases that there is something to place: it would look soon, anyway."""
    async with database.transaction() as session:
        await session.execute(text(f"NOTIFY {PLACING}"))


async def tell_use(database: Database, used: Mapping[int, Use], now: float) -> None:
    """Of leases, by their generations.

    Args:
        now: by the same clock as `Use.idle_at`.
    """
    async with database.transaction() as session:
        for generation, use in sorted(used.items()):
            idle = None if use.idle_at is None else _NOW - timedelta(seconds=now - use.idle_at)
            said = {"memory_bytes": use.memory_bytes, "is_kept": use.is_kept, "idle_at": idle}
            mine = update(Lease).where(Lease.generation == generation)
            await session.execute(mine.values(said))


async def give_back(database: Database, generations: Sequence[int]) -> None:
    async with database.transaction() as session:
        await session.execute(delete(Lease).where(Lease.generation.in_(generations)))


async def keep_no_more(database: Database, generations: Sequence[int]) -> None:
    """What waits to be placed is given up where that takes long."""
    async with database.transaction() as session:
        these = update(Lease).where(Lease.generation.in_(generations))
        await session.execute(these.values(is_kept=False))


async def revoke(database: Database, spec_id: str) -> None:
    """All leases of a specification that is no more."""
    async with database.transaction() as session:
        await session.execute(delete(Lease).where(Lease.spec_id == spec_id))


class Watch:
    """What one gateway reads, again and again, of nodes and leases.

    Whoever could not read for a while judges nobody, as of servers.
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
                found = await nodes_of(session), await leases_of(session)
            self._last = now
            return found

    async def _forget_gone(self) -> None:
        silent = Node.seen_at < _NOW - timedelta(seconds=GONE_AFTER_S)
        async with self._database.reading() as session:
            if await session.scalar(select(Node.id).where(silent).limit(1)) is None:
                return
        async with self._database.transaction() as session:
            # Whoever comes back at this moment holds its row, and is not gone.
            gone = select(Node.id).where(silent).with_for_update(skip_locked=True)
            await session.execute(delete(Node).where(Node.id.in_(gone)))


class SupersededError(Exception):
    """Another process has come as this node since."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What a node host tells of itself, once."""

    id: str
    name: str
    address: str
    certificate: str
    pid: int
    version: str
    python: str

    async def begin(self, database: Database) -> None:
        """Be there, with no leases: what another process of this node ran has ended with it."""
        async with database.transaction() as session:
            await session.execute(delete(Lease).where(Lease.node_id == self.id))
            await self._write(session)

    async def beat(
        self, database: Database, machine: MachineStats, *, is_draining: bool
    ) -> dict[str, int]:
        """Tell that it is there. Returns its leases: specification → generation.

        Raises `SupersededError`.
        """
        said: dict[str, Any] = {
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
            mine = update(Node).where(Node.id == self.id).values(said).returning(Node.certificate)
            shown = await session.scalar(mine)
            if shown is None:
                # It was silent for too long, and its leases are gone.
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
        said: dict[str, Any] = {
            **vars(self),
            "is_draining": False,
            "machine": dict[str, int](),
            "started_at": _NOW,
            "seen_at": _NOW,
        }
        row = insert(Node).values(said)
        await session.execute(row.on_conflict_do_update(index_elements=[Node.id], set_=said))
