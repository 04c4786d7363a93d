"""Tests of leases in PostgreSQL, with an injected clock."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, func, select, update

from stoker.runtime.nodes import leases
from stoker.runtime.nodes.leases import (
    GONE_AFTER_S,
    LeaseWatch,
    NodeLease,
    Registration,
    SupersededError,
)
from stoker.runtime.observed import MachineStats
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Database
from stoker.store.tables.nodes import Lease, Node
from tests.support.databases import counted

SPEC = DeploymentSpec(id="trial_1", account_id="acct_1", model="m", pipeline="p", source="s")
"""Specification without a version. Versions would have to exist in the database."""
MACHINE = MachineStats(cores=2, total_bytes=10, budget_bytes=8, held_bytes=3)


def registration(name: str, certificate: str = "one") -> Registration:
    return Registration(
        id=name,
        name=name,
        address="127.0.0.1:1",
        certificate=certificate,
        pid=1,
        version="0",
        python="3",
    )


@pytest.fixture
async def nodes(database: Database) -> AsyncIterator[list[Registration]]:
    registrations = [registration("node_a"), registration("node_b")]
    for node in registrations:
        await node.begin(database)
    yield registrations
    async with database.transaction() as session:
        await session.execute(delete(Node))


def first_free(found: Sequence[NodeLease]) -> list[str]:
    """Chooses `node_a` unless a lease exists already."""
    return [] if found else ["node_a"]


async def test_one_lease_however_many_want_it(
    database: Database, nodes: list[Registration]
) -> None:
    wishes = iter(["node_a", "node_b"] * 10)

    def choose(found: Sequence[NodeLease]) -> list[str]:
        return [] if found else [next(wishes)]

    results = await asyncio.gather(*(leases.take(database, SPEC, choose) for _ in range(20)))
    assert len({tuple(result) for result in results}) == 1
    [lease] = results[0]
    assert (lease.spec_id, lease.deployment_id, lease.node_id) == ("trial_1", "trial_1", "node_a")


async def test_generations_grow(database: Database, nodes: list[Registration]) -> None:
    [first] = await leases.take(database, SPEC, first_free)
    await leases.give_back(database, [first.generation])
    [second] = await leases.take(database, SPEC, first_free)
    assert second.generation > first.generation
    both = await leases.take(database, SPEC, lambda _: ["node_b"])
    assert [lease.node_id for lease in both] == ["node_a", "node_b"]
    await leases.revoke(database, SPEC.id)
    async with database.reading() as session:
        assert await leases.leases_of(session) == []


async def test_none_for_a_node_that_has_gone(database: Database, nodes: list[Registration]) -> None:
    await nodes[0].end(database)
    assert await leases.take(database, SPEC, first_free) == []


async def test_several_at_once(database: Database, nodes: list[Registration]) -> None:
    both = await leases.take(database, SPEC, lambda _: ["node_b", "node_gone", "node_a"])
    assert [lease.node_id for lease in both] == ["node_b", "node_a"]


async def test_none_for_a_version_that_was_deleted(
    database: Database, nodes: list[Registration]
) -> None:
    version = replace(SPEC, deployment_id="dep_1")
    assert await leases.take(database, version, first_free) == []


async def test_a_node_knows_its_leases(database: Database, nodes: list[Registration]) -> None:
    [lease] = await leases.take(database, SPEC, first_free)
    other = replace(SPEC, id="trial_2")
    await leases.take(database, other, lambda current: [] if current else ["node_b"])
    current = await nodes[0].beat(database, MACHINE, is_draining=False)
    assert current == {"trial_1": lease.generation}
    async with database.reading() as session:
        row = await session.get_one(Node, "node_a")
        assert row.machine["budget_bytes"] == 8
    # A restarted node has no leases, because its replicas ended with it.
    await registration("node_a", "two").begin(database)
    with pytest.raises(SupersededError):
        await nodes[0].beat(database, MACHINE, is_draining=False)
    assert await registration("node_a", "two").beat(database, MACHINE, is_draining=True) == {}
    # The end of the former process does not remove the new registration.
    await nodes[0].end(database)
    async with database.reading() as session:
        assert (await session.get_one(Node, "node_a")).is_draining


async def test_silent_nodes_are_gone_and_their_leases_with_them(
    database: Database, nodes: list[Registration]
) -> None:
    await leases.take(database, SPEC, first_free)
    now = 1000.0
    watch = LeaseWatch(database, lambda: now)
    await silence(database, "node_a")
    seen_nodes, live_leases = await watch.look()
    # A watch that has just started declares no node lost.
    assert ([node.id for node in seen_nodes], len(live_leases)) == (["node_a", "node_b"], 1)
    for _ in range(4):
        now += GONE_AFTER_S / 4
        seen_nodes, live_leases = await watch.look()
    assert ([node.id for node in seen_nodes], live_leases) == (["node_b"], [])
    # The node returns without leases.
    assert await nodes[0].beat(database, MACHINE, is_draining=False) == {}
    seen_nodes, _ = await watch.look()
    assert [node.id for node in seen_nodes] == ["node_a", "node_b"]


async def test_who_could_not_look_for_a_while_judges_nobody(
    database: Database, nodes: list[Registration]
) -> None:
    now = 1000.0
    watch = LeaseWatch(database, lambda: now)
    await watch.look()
    now += 3 * GONE_AFTER_S
    await silence(database, "node_a")
    seen_nodes, _ = await watch.look()
    assert len(seen_nodes) == 2


async def test_an_idle_second_is_one_statement_each(
    database: Database, nodes: list[Registration]
) -> None:
    now = 1000.0
    watch = LeaseWatch(database, lambda: now)
    for _ in range(5):
        now += GONE_AFTER_S / 4
        await watch.look()
    [lease] = await leases.take(database, SPEC, first_free)
    with counted(database) as statements:
        seen_nodes, seen_leases = await watch.look()
        assert await nodes[0].beat(database, MACHINE, is_draining=True) == {
            SPEC.id: lease.generation
        }
        assert await nodes[1].beat(database, MACHINE, is_draining=False) == {}
    assert len(statements) == 3
    assert ([node.id for node in seen_nodes], seen_leases) == (["node_a", "node_b"], [lease])
    seen_nodes, _ = await watch.look()
    assert [(node.is_draining, node.machine.held_bytes) for node in seen_nodes] == [
        (True, 3),
        (False, 3),
    ]


async def silence(database: Database, node_id: str) -> None:
    """Sets the node's last heartbeat to a time before the limit."""
    ago = func.clock_timestamp() - timedelta(seconds=GONE_AFTER_S + 1)
    async with database.transaction() as session:
        await session.execute(update(Node).where(Node.id == node_id).values(seen_at=ago))
        assert await session.scalar(select(func.count(Lease.generation))) is not None
