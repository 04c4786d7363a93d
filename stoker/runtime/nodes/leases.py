"""Nodes and leases in the database, which alone decides what may run on which node."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stoker.runtime.graphics import needs_device
from stoker.runtime.nodes import repository
from stoker.runtime.observed import MachineStats
from stoker.runtime.specification import DeploymentSpec
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.deployments import DeploymentVersion
from stoker.store.tables.nodes import Lease, Node

GONE_AFTER_S = 15.0
"""Seconds without a heartbeat after which a node counts as lost, as with servers."""


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
    return [_node(row) for row in await repository.nodes(session)]


def _node(row: Any) -> NodeRecord:
    return NodeRecord(
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
    return [_lease(row) for row in await repository.leases(session, spec_id)]


def _lease(row: Any) -> NodeLease:
    return NodeLease(
        spec_id=row.spec_id,
        node_id=row.node_id or "",
        deployment_id=row.deployment_id,
        generation=row.generation,
        is_kept=row.is_kept and row.node_id is None,
        problem=row.problem or "",
    )


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
        await repository.lock_specification(session, spec.id)
        # A deletion of either row waits for this lock, and deletes the lease too.
        lock_options: dict[str, Any] = {"with_for_update": {"read": True}}
        if spec.version and not await session.get(DeploymentVersion, spec.version, **lock_options):
            return []
        if are_wishes and may_evict:
            await repository.permit_evictions(session, spec.id)
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
        await repository.notify_placer(session)


async def tell_use(database: Database, used: Mapping[int, Use], now: float) -> None:
    """Stores the use of leases, by their generations.

    Args:
        now: the current time of the clock of `Use.idle_at`.
    """
    async with database.transaction() as session:
        for generation, use in sorted(used.items()):
            await repository.write_use(
                session,
                generation,
                memory_bytes=use.memory_bytes,
                is_kept=use.is_kept,
                idle_s=None if use.idle_at is None else now - use.idle_at,
            )


async def give_back(database: Database, generations: Sequence[int]) -> None:
    async with database.transaction() as session:
        await repository.delete_leases(session, generations)


async def keep_no_more(database: Database, generations: Sequence[int]) -> None:
    """Clears `is_kept`, so that leases that wait long for a node are dropped."""
    async with database.transaction() as session:
        await repository.clear_is_kept(session, generations)


async def revoke(database: Database, spec_id: str) -> None:
    """Deletes all leases of a deleted specification."""
    async with database.transaction() as session:
        await repository.delete_leases_of(session, spec_id)


class LeaseWatch:
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
            rows = await repository.fleet(self._database, GONE_AFTER_S)
            if now - self._since >= GONE_AFTER_S and any(row.is_silent for row in rows):
                async with self._database.transaction() as session:
                    await repository.delete_silent_nodes(session, GONE_AFTER_S)
                rows = await repository.fleet(self._database, GONE_AFTER_S)
            self._last = now
            nodes = [_node(row) for row in rows if row.id is not None]
            return nodes, [_lease(row) for row in rows if row.generation is not None]


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
            await repository.delete_leases_on(session, self.id)
            await self._write(session)

    async def beat(
        self, database: Database, machine: MachineStats, *, is_draining: bool
    ) -> dict[str, int]:
        """Sends a heartbeat. Returns the node's leases: specification → generation.

        Raises `SupersededError`.
        """
        report = {
            "cores": machine.cores,
            "total_bytes": machine.total_bytes,
            "budget_bytes": machine.budget_bytes,
            "held_bytes": machine.held_bytes,
            "used_bytes": machine.used_bytes,
            "reserved_bytes": machine.reserved_bytes,
        }
        held_leases = await repository.write_heartbeat(
            database, self.id, self.certificate, report, is_draining=is_draining
        )
        return await self._register_again(database) if held_leases is None else held_leases

    async def _register_again(self, database: Database) -> dict[str, int]:
        """Registers a node that was silent for too long, so that its leases were deleted."""
        async with database.transaction() as session:
            if await repository.locked_certificate(session, self.id) not in (
                None,
                self.certificate,
            ):
                raise SupersededError
            await self._write(session)
            rows = await repository.leases_on(session, self.id)
            return {row.spec_id: row.generation for row in rows}

    async def end(self, database: Database) -> None:
        async with database.transaction() as session:
            await repository.delete_node(session, self.id, self.certificate)

    async def _write(self, session: Session) -> None:
        await repository.write_node(session, vars(self))
