"""Tests of the placer with a real PostgreSQL and a minimal Ray that packs as Ray does."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from sqlalchemy import delete, select, text, update

from stoker.runtime.nodes import leases
from stoker.runtime.nodes.leases import NodeLease, Registration
from stoker.runtime.ray.placer import Placer, RayLostError
from stoker.runtime.ray.reconcile import UNIT, Create, Group, NodeResources
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Database
from stoker.store.tables.nodes import Lease, Node
from tests.support import postgres

SPEC = DeploymentSpec(
    id="trial_1", account_id="acct_1", model="m", pipeline="p", source="s", memory_bytes=UNIT
)
SOON_S = 20.0


class Packing:
    """Creates placement groups of one node each, on a node with room."""

    def __init__(self, **memory: int) -> None:
        self.memory = memory
        self.made: dict[str, tuple[Create, str | None]] = {}
        self.asked = 0
        self.is_lost = False
        self._ids = itertools.count()

    def nodes(self) -> dict[str, NodeResources]:
        self._look()
        return {name: NodeResources(memory_bytes=size) for name, size in self.memory.items()}

    def groups(self) -> list[Group]:
        self._look()
        self.asked += 1
        for name, (request, place) in self.made.items():
            if place is None:
                self.made[name] = (request, self._place(request))
        return [
            Group(id=name, generation=request.generation, size=request.size, node_id=place)
            for name, (request, place) in self.made.items()
        ]

    def create(self, wanted: Sequence[Create]) -> None:
        for request in wanted:
            self.made[f"group{next(self._ids)}"] = (request, None)

    def remove(self, identifiers: Sequence[str]) -> None:
        for identifier in identifiers:
            self.made.pop(identifier, None)

    def _look(self) -> None:
        if self.is_lost:
            raise ConnectionError("the head is lost")

    def _place(self, wanted: Create) -> str | None:
        for node_id in sorted(self.memory, key=lambda one: one != wanted.prefers):
            used = sum(one.size for one, place in self.made.values() if place == node_id)
            allowed = wanted.on in (None, node_id) and node_id not in wanted.not_on
            if allowed and used + wanted.size <= self.memory[node_id]:
                return node_id
        return None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.running() as database_url:
        yield database_url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    migrated_database = Database(url)
    await migrated_database.migrate()
    for name in ("node_a", "node_b"):
        about = {"address": "127.0.0.1:1", "certificate": "", "pid": 1, "version": "", "python": ""}
        await Registration(id=name, name=name, **about).begin(migrated_database)  # type: ignore[arg-type]
    yield migrated_database
    async with migrated_database.transaction() as session:
        await session.execute(delete(Lease))
        await session.execute(delete(Node))
    await migrated_database.close()


@contextlib.asynccontextmanager
async def placing(database: Database, ray: Packing) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(Placer(database, ray).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def placed(database: Database, spec_id: str = SPEC.id) -> list[NodeLease]:
    """Returns the leases of a specification once all of them are placed."""
    async with asyncio.timeout(SOON_S):
        while True:
            async with database.reading() as session:
                current = await leases.leases_of(session, spec_id)
            if current and all(lease.node_id for lease in current):
                return current
            await asyncio.sleep(0.01)


async def take(database: Database, node_id: str = "", spec: DeploymentSpec = SPEC) -> None:
    await leases.take(
        database, spec, lambda existing: [] if existing else [node_id], are_wishes=True
    )
    await leases.hint(database)


async def test_a_wish_is_placed_where_there_is_room(database: Database) -> None:
    ray = Packing(node_a=4 * UNIT, node_b=UNIT)
    async with placing(database, ray):
        await take(database, "node_b")
        assert [lease.node_id for lease in await placed(database)] == ["node_b"]
        other = DeploymentSpec(**{**vars(SPEC), "id": "trial_2"})
        await take(database, "node_b", other)
        assert [lease.node_id for lease in await placed(database, "trial_2")] == ["node_a"]
        await leases.revoke(database, SPEC.id)
        async with asyncio.timeout(SOON_S):
            while len(ray.made) > 1:
                await asyncio.sleep(0.01)
        [(created, _)] = ray.made.values()
        assert created.not_on == ()


async def test_several_of_one_are_on_different_nodes(database: Database) -> None:
    async with placing(database, Packing(node_a=9 * UNIT, node_b=9 * UNIT)):
        await leases.take(database, SPEC, lambda _: ["", ""], are_wishes=True)
        first, *_ = await placed(database)
        assert first.node_id
        assert {lease.node_id for lease in await placed(database)} == {"node_a", "node_b"}


async def test_who_may_not_have_others_go_may_once_it_is_called(database: Database) -> None:
    ray = Packing(node_a=UNIT)
    async with placing(database, ray):
        await take(database)
        [lease] = await placed(database)
        await leases.tell_use(
            database,
            {lease.generation: leases.Use(memory_bytes=UNIT, is_kept=False, idle_at=10.0)},
            now=15.0,
        )
        warm = DeploymentSpec(**{**vars(SPEC), "id": "trial_2"})
        how = {"are_wishes": True, "may_evict": False}
        await leases.take(database, warm, lambda _: [""], **how)
        await until_problem(database, "trial_2")
        assert [placed_lease.generation for placed_lease in await placed(database)] == [
            lease.generation
        ]
        await leases.take(database, warm, lambda _: [], are_wishes=True)
        assert [placed_lease.node_id for placed_lease in await placed(database, "trial_2")] == [
            "node_a"
        ]
        async with database.reading() as session:
            assert await leases.leases_of(session, SPEC.id) == []


async def until_problem(database: Database, spec_id: str) -> str:
    async with asyncio.timeout(SOON_S):
        while True:
            async with database.reading() as session:
                problem = await session.scalar(
                    select(Lease.problem).where(Lease.spec_id == spec_id)
                )
            if problem:
                return problem
            await asyncio.sleep(0.01)


@pytest.mark.fault("n13")
async def test_one_places_at_a_time(database: Database, url: str) -> None:
    """If two placers consider themselves leaders, the second waits until the first has ended. Then
    it continues with the remaining leases.
    """
    first, second = Packing(node_a=9 * UNIT), Packing(node_a=9 * UNIT)
    other = Database(url)
    async with placing(database, first) as leader:
        await take(database)
        await placed(database)
        async with placing(other, second):
            await asyncio.sleep(1.0)
            assert second.asked == 0
            leader.cancel()
            await asyncio.gather(leader, return_exceptions=True)
            async with asyncio.timeout(SOON_S):
                while not second.made:
                    await asyncio.sleep(0.01)
            [(request, _)] = second.made.values()
            # The second placer has another, empty Ray, so it requests placed leases on their nodes.
            assert request.on == "node_a"
    await other.close()


@pytest.mark.fault("n12")
async def test_who_has_lost_the_lock_stops(database: Database) -> None:
    """A placer with a cut connection does nothing more until it holds the lock again."""
    ray = Packing(node_a=9 * UNIT)
    async with placing(database, ray):
        await take(database)
        await placed(database)
        async with database.transaction() as session:
            ended = await session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                    " AND granted AND pid <> pg_backend_pid()"
                )
            )
            assert [*ended.scalars()] == [True]
        await leases.revoke(database, SPEC.id)
        async with asyncio.timeout(SOON_S):
            while ray.made:
                await asyncio.sleep(0.01)


async def test_a_ray_that_is_lost_ends_it(database: Database) -> None:
    """The loss of Ray ends the placer. Its supervisor restarts it, because a process connects to
    Ray once.
    """
    ray = Packing(node_a=9 * UNIT)
    async with placing(database, ray) as task:
        await take(database)
        await placed(database)
        ray.is_lost = True
        with pytest.raises(RayLostError, match="the head is lost"):
            await asyncio.wait_for(asyncio.shield(task), SOON_S)


async def test_nothing_is_placed_on_a_node_that_ends(database: Database) -> None:
    async with database.transaction() as session:
        ends = update(Node).where(Node.id == "node_a").values(is_draining=True)
        await session.execute(ends)
    ray = Packing(node_a=9 * UNIT)
    async with placing(database, ray):
        await take(database)
        async with asyncio.timeout(SOON_S):
            while not ray.made:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        async with database.reading() as session:
            [lease] = await leases.leases_of(session, SPEC.id)
            assert lease.node_id == ""
