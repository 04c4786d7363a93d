"""Places leases with Ray: keeps a placement group for each row of the table `leases`, and stores
the node chosen by Ray.

An advisory lock of PostgreSQL lets one placer work at a time; others wait for it to end. All state
is in the table and in Ray, so a placer may be killed at any moment. A placer that cannot reach one
of the two for a while exits, to be restarted.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import asyncpg
from sqlalchemy.exc import DBAPIError

from stoker.runtime.nodes.repository import PLACING
from stoker.runtime.ray import repository
from stoker.runtime.ray.reconcile import (
    Create,
    Group,
    LeaseRow,
    NodeResources,
    PlacementPlan,
    RayNode,
    Reconciler,
)
from stoker.store import postgres
from stoker.store.db import Database
from stoker.store.tables.nodes import Node

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two polls without a notification."""
_SOON_S = 0.005
"""Seconds between two polls after a change. Ray places a group within milliseconds if it has
room.
"""
_SOON = 40
"""Number of short polls in a row after a change."""
RAY_S = 10.0
"""Timeout of a call to Ray in seconds."""
_RETRY_S = 0.5

T = TypeVar("T")


class _LostError(Exception):
    """Raised if the connection was lost, and the lock with it."""


_AWAY = (OSError, DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, _LostError)


class Ray(Protocol):
    """Interface of `stoker.runtime.ray.groups.Ray`. All methods block."""

    def nodes(self) -> dict[str, NodeResources]: ...

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
        """Returns True if another placer may be working."""

    async def run(self) -> None:
        """Waits until no other placer works, then places leases until cancelled.

        Raises `RayLostError`, because the same process cannot connect to Ray again.
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
        """Holds the lock on a separate connection for its lifetime, and receives hints on it."""
        connection = await asyncpg.connect(postgres.dsn(self._database.url), timeout=RAY_S)
        try:
            await connection.execute(repository.WAIT_FOR_LOCK)
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
            # Ray fulfils a request within a moment, and then the result has to be written.
            soon = _SOON if plan.has_changes else max(0, soon - 1)
            if soon:
                await asyncio.sleep(_SOON_S)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hinted.wait(), LOOK_S)

    async def _step(self) -> PlacementPlan:
        # Groups first: a group without a row afterwards is abandoned.
        groups = await _in_thread(self._ray.groups)
        machines = await _in_thread(self._ray.nodes)
        rows, accepting_nodes = await self._read()
        places = [
            RayNode(
                node_id=node_id,
                memory_bytes=machine.memory_bytes,
                has_device=machine.has_device,
                is_there=node_id in accepting_nodes,
            )
            for node_id, machine in sorted(machines.items())
        ]
        plan = self._reconciler.plan(rows, groups, places, time.monotonic())
        await self._write(plan)
        await _in_thread(self._ray.remove, plan.remove)
        await _in_thread(self._ray.create, plan.create)
        return plan

    async def _read(self) -> tuple[list[LeaseRow], set[str]]:
        """Returns the leases, and the nodes that accept leases."""
        async with self._database.reading() as session:
            rows = await repository.rows(session)
            return rows, await repository.accepting_nodes(session)

    async def _write(self, plan: PlacementPlan) -> None:
        if not (plan.place or plan.drop or plan.evict or plan.problems):
            return
        async with self._database.transaction() as session:
            for generation, problem in sorted(plan.problems.items()):
                await repository.write_problem(session, generation, problem)
            for generation, node_id in sorted(plan.place.items()):
                # The node may have been deleted since.
                if await session.get(Node, node_id, with_for_update={"read": True}):
                    await repository.place(session, generation, node_id)
            await repository.delete_leases(session, plan.drop, if_idle=plan.evict)
        for generation in plan.drop:
            log.warning("lease lost", extra={"lease": generation})


class RayLostError(Exception):
    """Raised if Ray does not answer or cannot be called."""


async def _in_thread(work: Callable[..., T], *given: Any) -> T:
    try:
        async with asyncio.timeout(RAY_S):
            return await asyncio.to_thread(work, *given)
    except Exception as error:
        raise RayLostError(str(error) or f"Ray has not answered for {RAY_S:.0f} s") from error
