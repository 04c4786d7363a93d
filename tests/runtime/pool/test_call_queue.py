"""Tests of the admission queue: which calls are accepted and when others are rejected."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from stoker.base.errors import ConflictError, RateLimitError
from stoker.base.fairness import CURRENT_CALLER, Party
from tests.runtime.pool.world import World, settle


def call_of(world: World, key: str) -> "asyncio.Task[bytes]":
    """Starts a call with a key."""
    token = CURRENT_CALLER.set(Party("acct_1", key))
    try:
        return world.call()
    finally:
        CURRENT_CALLER.reset(token)


class TestLimits:
    async def test_queue_is_bounded(self) -> None:
        world = World(max_queue=3)
        calls = [world.call() for _ in range(3)]
        await settle()
        with pytest.raises(RateLimitError) as caught:
            await world.call()
        assert caught.value.code == "queue_full"
        world.answer(await world.loaded())
        await asyncio.gather(*calls)
        assert world.pool.stats().calls == 0

    async def test_who_is_turned_away_is_told_how_long_the_queue_takes(self) -> None:
        world = World(max_queue=30)
        first = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await first
        for _ in range(20):
            call = world.call()
            await settle()
            world.clock.now += 0.5
            world.answer(replica)
            await call
        calls = [world.call() for _ in range(30)]
        await settle()
        with pytest.raises(RateLimitError) as caught:
            await world.call()
        # 21 answers in ten seconds, and 30 calls wait.
        assert caught.value.headers["retry-after"] == "15"
        world.answer(replica)
        await asyncio.gather(*calls)

    async def test_who_would_be_answered_too_late_is_turned_away(self, world: World) -> None:
        calls = [world.call() for _ in range(50)]
        replica = await world.loaded()
        # The replica answers a call per second, and a new call follows each answer. So 50 calls
        # always wait.
        for _ in range(100):
            await world.answer_first(replica)
            calls.append(world.call())
            await settle()
        calls += [world.call() for _ in range(9)]
        await settle()
        assert not [call for call in calls if call.done() and call.exception()]
        with pytest.raises(RateLimitError) as caught:
            await world.call()
        assert caught.value.code == "queue_full"
        assert "With the 59 requests before it" in caught.value.message
        assert "about 60 s, but its limit is 60 s" in caught.value.message
        assert caught.value.headers["retry-after"] == "1"
        await world.answer_first(replica)
        calls.append(world.call())
        await settle()
        assert not calls[-1].done(), "it may wait once it is in time, as it was told"
        world.answer(replica)
        await asyncio.gather(*calls)

    async def test_nobody_is_turned_away_for_what_may_have_changed(self, world: World) -> None:
        calls = [world.call() for _ in range(50)]
        replica = await world.loaded()
        for _ in range(100):
            await world.answer_first(replica)
            calls.append(world.call())
            await settle()
        world.launcher.memory.set()
        world.pool.apply(replace(world.pool.spec, dtype="bfloat16"), running=True)
        more = [world.call() for _ in range(40)]
        await settle()
        assert not [call for call in more if call.done()], "another replica is on its way"
        await world.loaded()
        world.pool.exited(replica, 0)
        more += [world.call() for _ in range(40)]
        await settle()
        assert not [call for call in more[40:] if call.done()], "nothing is known of it"
        world.answer(world.launcher.launched[-1])
        await asyncio.gather(*more[40:])
        for call in (*calls, *more):
            call.cancel()

    async def test_stopped(self, world: World) -> None:
        world.pool.apply(world.pool.spec, running=False)
        with pytest.raises(ConflictError, match="stopped"):
            await world.call()


class TestKeys:
    async def test_a_queue_that_one_has_filled_is_not_full_for_another(self) -> None:
        world = World(max_queue=10)
        flood = [call_of(world, "flood") for _ in range(10)]
        await settle()
        with pytest.raises(RateLimitError):
            await call_of(world, "flood")
        other_calls = [call_of(world, "one") for _ in range(5)]
        await settle()
        assert not [call for call in other_calls if call.done()]
        with pytest.raises(RateLimitError) as caught:
            await call_of(world, "one")
        assert caught.value.code == "queue_full"
        world.answer(await world.loaded())
        await asyncio.gather(*flood, *other_calls)
        assert world.pool.stats().calls == 0

    async def test_no_number_of_keys_makes_it_longer_than_twice_what_it_may_be(self) -> None:
        world = World(max_queue=10)
        calls = [call_of(world, "flood") for _ in range(10)]
        calls += [call_of(world, f"key {at}") for at in range(30)]
        await settle()
        refused = [call for call in calls if call.done()]
        assert len(calls) - len(refused) <= 20
        assert all(isinstance(call.exception(), RateLimitError) for call in refused)
        for call in calls:
            call.cancel()

    async def test_another_key_is_not_told_that_it_would_come_too_late(self, world: World) -> None:
        calls = [call_of(world, "flood") for _ in range(50)]
        replica = await world.loaded()
        for _ in range(100):
            await world.answer_first(replica)
            calls.append(call_of(world, "flood"))
            await settle()
        calls += [call_of(world, "flood") for _ in range(9)]
        await settle()
        with pytest.raises(RateLimitError, match="With the 59 requests before it"):
            await call_of(world, "flood")
        new_call = call_of(world, "one")
        await settle()
        assert not new_call.done(), "there is one before it, as they take turns"
        world.answer(replica)
        await asyncio.gather(*calls, new_call)

    async def test_the_replica_is_told_whose_it_is(self, world: World) -> None:
        call = call_of(world, "0123")
        replica = await world.loaded()
        sent: Any = replica.channel
        assert b"0123" in b"".join(sent.sent[0])
        world.answer(replica)
        await call
