"""Calls of different service tiers in a deployment's pool: admission, replicas and memory."""

import asyncio
from typing import Any

import pytest

from stoker.base.errors import RateLimitError
from stoker.base.fairness import CURRENT_CALLER, Party, Tier
from stoker.runtime.pool.demand import Demand
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.routing import SCALE_UP_AT
from stoker.wire.protocol import Cancel, Work, pack, unpack
from tests.runtime.pool.world import World, settle


def call_of(world: World, tier: Tier, key: str = "a", wait_s: float = 60) -> "asyncio.Task[bytes]":
    token = CURRENT_CALLER.set(Party("acct_1", key, tier=tier))
    try:
        return world.call(wait_s)
    finally:
        CURRENT_CALLER.reset(token)


def flex(world: World, count: int = 1, wait_s: float = 60) -> "list[asyncio.Task[bytes]]":
    return [call_of(world, Tier.FLEX, wait_s=wait_s) for _ in range(count)]


def sent(replica: ReplicaHandle) -> list[list[bytes]]:
    wire: Any = replica.channel
    return wire.sent


async def end(world: World, replica: ReplicaHandle, calls: "list[asyncio.Task[bytes]]") -> None:
    world.answer(replica)
    assert await asyncio.gather(*calls) == [b"[]"] * len(calls)


class TestAdmission:
    async def test_flex_does_not_count_for_the_queue_of_live_calls(self) -> None:
        world = World(max_queue=3)
        calls = flex(world, 3)
        await settle()
        calls += [call_of(world, Tier.DEFAULT) for _ in range(3)]
        await settle()
        assert not [call for call in calls if call.done()]
        with pytest.raises(RateLimitError) as caught:
            await flex(world)[0]
        assert caught.value.code == "queue_full"
        assert "'flex'" in caught.value.message
        assert int(caught.value.headers["retry-after"]) > 0
        await end(world, await world.loaded(), calls)
        assert world.pool.stats().calls == 0

    async def test_priority_counts_as_a_live_call(self) -> None:
        world = World(max_queue=1)
        first = call_of(world, Tier.PRIORITY)
        await settle()
        with pytest.raises(RateLimitError):
            await call_of(world, Tier.DEFAULT)
        await end(world, await world.loaded(), [first])

    async def test_the_replica_gets_the_tier(self) -> None:
        world = World()
        calls = [call_of(world, tier) for tier in Tier]
        replica = await world.loaded()
        messages = [unpack(frames) for frames in sent(replica)]
        assert [work.tier for work in messages if isinstance(work, Work)] == list(Tier)
        await end(world, replica, calls)


class TestMemory:
    async def test_starts_in_free_memory(self) -> None:
        world = World()
        calls = flex(world)
        await end(world, await world.loaded(), calls)

    async def test_is_refused_without_free_memory(self) -> None:
        world = World()
        world.launcher.memory.clear()
        call = flex(world, wait_s=5)[0]
        await settle()
        world.clock.now += 6
        world.pool._state.changes.notify_all()
        with pytest.raises(RateLimitError) as caught:
            await call
        assert caught.value.code == "resource_unavailable"
        assert int(caught.value.headers["retry-after"]) > 0
        assert not world.launcher.launched

    async def test_a_live_call_waits_for_memory(self) -> None:
        world = World()
        world.launcher.memory.clear()
        call = call_of(world, Tier.DEFAULT)
        await settle()
        world.launcher.memory.set()
        await end(world, await world.loaded(), [call])

    async def test_does_not_keep_a_replica_from_eviction(self) -> None:
        world = World()
        calls = flex(world)
        replica = await world.loaded()
        await settle()
        world.clock.now += 60
        assert world.pool.is_idle(replica)
        live = call_of(world, Tier.DEFAULT)
        await settle()
        assert not world.pool.is_idle(replica)
        await end(world, replica, [*calls, live])

    async def test_an_evicted_replica_returns_its_calls(self) -> None:
        world = World()
        calls = flex(world, 2)
        replica = await world.loaded()
        identifiers = list(replica.pending)
        world.pool.evict(replica)
        await settle()
        messages = [unpack(frames) for frames in sent(replica)]
        cancelled = {message.id for message in messages if isinstance(message, Cancel)}
        assert cancelled == set(identifiers)
        other = await world.loaded()
        assert other is not replica
        assert other.outstanding == 2
        await end(world, other, calls)

    async def test_is_no_demand_for_the_model(self) -> None:
        world = World()
        calls = flex(world, 5)
        await end(world, await world.loaded(), calls)
        assert world.pool.call_rate == Demand(world.clock).rate == 0
        live = call_of(world, Tier.DEFAULT)
        await settle()
        assert world.pool.call_rate > 0
        await end(world, world.launcher.launched[0], [live])

    async def test_does_not_change_when_the_replica_was_last_used_by_others(self) -> None:
        world = World()
        live = call_of(world, Tier.DEFAULT)
        replica = await world.loaded()
        await end(world, replica, [live])
        before = replica.last_live
        world.clock.now += 50
        calls = flex(world)
        await settle()
        await end(world, replica, calls)
        assert replica.last_live == before
        assert replica.last_used > before


class TestReplicas:
    async def test_flex_calls_do_not_start_another_replica_for_live_ones(self) -> None:
        world = World(max_replicas=2)
        calls = flex(world)
        replica = await world.loaded()
        world.launcher.memory.clear()
        calls += flex(world, 2 * SCALE_UP_AT)
        await settle()
        calls.append(call_of(world, Tier.DEFAULT))
        await settle()
        assert len(world.launcher.launched) == 1
        await end(world, replica, calls)

    async def test_live_calls_go_where_the_fewest_live_calls_are(self) -> None:
        world = World(min_replicas=2, max_replicas=2)
        world.pool.tick()
        first = await world.loaded(0)
        world.pool.tick()
        second = await world.loaded(1)
        live = [call_of(world, Tier.DEFAULT)]
        await settle()
        busy, other = (first, second) if first.outstanding else (second, first)
        calls = flex(world, 5)
        await settle()
        live.append(call_of(world, Tier.DEFAULT))
        await settle()
        assert busy.live_outstanding == other.live_outstanding == 1
        world.answer(first)
        world.answer(second)
        await asyncio.gather(*live, *calls)


def test_work_of_an_earlier_release_has_the_default_tier() -> None:
    work = Work(1, "t", [], {}, True)
    assert unpack(pack(work)) == work
    assert work.tier is Tier.DEFAULT
