"""Places leases by Ray: has for each row of the table `leases` a placement group, and writes down
where Ray has put it.

One is at work at a time, by an advisory lock of PostgreSQL; whoever else is there waits for it to
end. All that it knows stands in the table and in Ray, so it may be killed at any moment, and
whoever cannot reach one of the two for a while ends itself, to be started anew.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import asyncpg
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import DBAPIError

from stoker.runtime.nodes.leases import PLACING
from stoker.runtime.ray.reconcile import Create, Group, Machine, Place, Plan, Reconciler, Row
from stoker.store import postgres
from stoker.store.db import Database
from stoker.store.tables.nodes import Lease, Node

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Between two looks where nothing is heard of."""
_SOON_S = 0.005
"""And where something is on its way: Ray places within some milliseconds what it has room for."""
_SOON = 40
"""So many looks are taken so soon one after another."""
RAY_S = 10.0
"""Longest that Ray may take for an answer."""
_RETRY_S = 0.5
_LOCK = 0x73746F6B03
"""PostgreSQL's advisory lock, for whoever places."""

T = TypeVar("T")


class _LostError(Exception):
    """The lock is, too."""


_AWAY = (OSError, DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, _LostError)


class Ray(Protocol):
    """`stoker.runtime.ray.groups.Ray`: each of these blocks."""

    def nodes(self) -> dict[str, Machine]: ...

    def groups(self) -> list[Group]: ...

    def create(self, wanted: Sequence[Create]) -> None: ...

    def remove(self, identifiers: Sequence[str]) -> None: ...


class Placer:
    def __init__(self, database: Database, ray: Ray) -> None:
        self._database = database
        self._ray = ray
        self._reconciler = Reconciler()
        self._hinted = asyncio.Event()
        self._is_lost: Callable[[], bool] = lambda: True
        """Whether somebody else may be at work."""

    async def run(self) -> None:
        """Place, as soon as nobody else does, until cancelled.

        Raises `RayLostError`: a connection to Ray is not to be had again in the same process.
        """
        while True:
            try:
                async with self._leading():
                    log.info("this process places leases now")
                    await self._place()
            except _AWAY as error:
                log.warning("database unavailable: %s", error)
                await asyncio.sleep(_RETRY_S)

    @asynccontextmanager
    async def _leading(self) -> AsyncGenerator[None]:
        """Over a connection of its own, which has the lock as long as it lasts, and hears hints."""
        connection = await asyncpg.connect(postgres.dsn(self._database.url), timeout=RAY_S)
        try:
            await connection.execute(f"SELECT pg_advisory_lock({_LOCK})")
            await connection.add_listener(PLACING, lambda *_: self._hinted.set())
            connection.add_termination_listener(lambda _: self._hinted.set())
            self._is_lost = connection.is_closed
            yield
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=_RETRY_S)

    async def _place(self) -> None:
        soon = 0
        while True:
            if self._is_lost():
                raise _LostError("the connection that has the lock has ended")
            self._hinted.clear()
            plan = await self._step()
            # What has been asked of Ray is there in a moment, and then there is something to write.
            soon = _SOON if plan.has_changes else max(0, soon - 1)
            if soon:
                await asyncio.sleep(_SOON_S)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hinted.wait(), LOOK_S)

    async def _step(self) -> Plan:
        # Groups first: one whose row is not there afterwards was given up.
        groups = await _in_thread(self._ray.groups)
        machines = await _in_thread(self._ray.nodes)
        rows, there = await self._read()
        places = [
            Place(
                node_id=node_id,
                memory_bytes=one.memory_bytes,
                has_device=one.has_device,
                is_there=node_id in there,
            )
            for node_id, one in sorted(machines.items())
        ]
        plan = self._reconciler.plan(rows, groups, places, time.monotonic())
        await self._write(plan)
        await _in_thread(self._ray.remove, plan.remove)
        await _in_thread(self._ray.create, plan.create)
        return plan

    async def _read(self) -> tuple[list[Row], set[str]]:
        """The leases, and the nodes that take some."""
        now = func.clock_timestamp()
        idle_s = func.extract("epoch", now - Lease.idle_at)
        age_s = func.extract("epoch", now - Lease.created_at)
        async with self._database.reading() as session:
            found = await session.execute(select(Lease, idle_s, age_s))
            rows = [
                Row(
                    generation=one.generation,
                    spec_id=one.spec_id,
                    node_id=one.node_id,
                    memory_bytes=one.memory_bytes,
                    needs_device=one.needs_device,
                    prefers=one.prefers,
                    may_evict=one.may_evict,
                    is_kept=one.is_kept,
                    idle_s=max(0.0, float(idle)) if one.idle_at else None,
                    age_s=float(age),
                    problem=one.problem,
                )
                for one, idle, age in found
            ]
            nodes = await session.scalars(select(Node.id).where(~Node.is_draining))
            return rows, {*nodes}

    async def _write(self, plan: Plan) -> None:
        if not (plan.place or plan.drop or plan.evict or plan.problems):
            return
        async with self._database.transaction() as session:
            for generation, problem in sorted(plan.problems.items()):
                mine = update(Lease).where(Lease.generation == generation)
                await session.execute(mine.values(problem=problem))
            for generation, node_id in sorted(plan.place.items()):
                # The node may have gone since.
                if await session.get(Node, node_id, with_for_update={"read": True}):
                    mine = update(Lease).where(Lease.generation == generation)
                    await session.execute(mine.values(node_id=node_id, problem=None))
            # Somebody may have called since.
            idle = Lease.generation.in_(plan.evict) & Lease.idle_at.is_not(None)
            await session.execute(delete(Lease).where(idle | Lease.generation.in_(plan.drop)))
        for generation in plan.drop:
            log.warning("lease lost", extra={"lease": generation})


class RayLostError(Exception):
    """Ray does not answer, or cannot be spoken to."""


async def _in_thread(work: Callable[..., T], *given: Any) -> T:
    try:
        async with asyncio.timeout(RAY_S):
            return await asyncio.to_thread(work, *given)
    except Exception as error:
        raise RayLostError(str(error) or f"Ray has not answered for {RAY_S:.0f} s") from error
