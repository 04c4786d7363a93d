"""Selection of a replica for a call, and the handling of cancelled calls and lost replicas."""

import asyncio
from typing import Any

import pytest

from stoker.base.errors import CapacityError, ModelLoadingError
from stoker.runtime.listening import CANCELLED
from stoker.runtime.observed import Reason
from stoker.runtime.pool.backoff import INITIAL_S
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.routing import SCALE_UP_AT
from stoker.wire.protocol import Cancelled, RequestResult
from tests.runtime.pool.world import CALL, World, answer_unknown, settle


class TestRouting:
    async def test_least_busy(self) -> None:
        world = World(min_replicas=2, max_replicas=2)
        world.pool.tick()
        await world.loaded(0)
        world.pool.tick()
        await world.loaded(1)
        calls = [world.call() for _ in range(10)]
        await settle()
        assert [candidate.outstanding for candidate in world.launcher.launched] == [5, 5]
        for replica in world.launcher.launched:
            world.answer(replica)
        await asyncio.gather(*calls)

    async def test_backlog_starts_another(self) -> None:
        world = World(max_replicas=2)
        first = world.call()
        await world.loaded()
        calls = [first] + [world.call() for _ in range(SCALE_UP_AT)]
        await settle()
        assert len(world.launcher.launched) == 2
        await world.loaded()
        for replica in world.launcher.launched:
            world.answer(replica)
        await asyncio.gather(*calls)

    async def test_backlog_waits_after_a_start_that_failed(self) -> None:
        world = World(max_replicas=2)
        first = world.call()
        await world.loaded()
        world.launcher.fail = "no such file"
        calls = [first] + [world.call() for _ in range(3 * SCALE_UP_AT)]
        await settle()
        failures = [change for change in world.recorder.changes if change[1] is Reason.LOAD_FAILED]
        assert len(failures) <= 1
        world.launcher.fail = None
        calls.append(world.call())
        await settle()
        assert len(world.launcher.launched) == 1
        world.clock.now += INITIAL_S
        calls.append(world.call())
        await world.loaded()
        assert len(world.launcher.launched) == 2
        for replica in world.launcher.launched:
            world.answer(replica)
        await asyncio.gather(*calls)

    async def test_long_work_has_a_replica_for_itself(self) -> None:
        world = World(max_replicas=2)

        def film() -> "asyncio.Task[bytes]":
            work = world.pool.call(CALL, wait_s=60, timeout_s=60, on_progress=lambda _: None)
            return asyncio.create_task(work)

        first, second, third = film(), film(), film()
        first_replica = await world.loaded()
        two = await world.loaded()
        assert first_replica is not two
        await settle()
        assert sorted([first_replica.outstanding, two.outstanding]) == [1, 2]
        world.answer(first_replica)
        world.answer(two)
        assert await asyncio.gather(first, second, third) == [b"[]"] * 3


class TestWaiting:
    async def test_is_told_until_a_replica_is_given_the_call(self, world: World) -> None:
        first = world.call()
        await settle()
        assert world.recorder.told == ["waits"]
        replica = await world.loaded()
        assert world.recorder.told == ["waits", "given"]
        # The replica receives another call at once.
        second = world.call()
        await settle()
        assert replica.outstanding == 2
        assert world.recorder.told == ["waits", "given"]
        world.answer(replica)
        await asyncio.gather(first, second)

    async def test_a_lost_replica_has_it_wait_again(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        answer_unknown(replica)
        world.pool.exited(replica, -9)
        await settle()
        assert world.recorder.told == ["waits", "given", "waits"]
        world.answer(await world.loaded())
        await call
        assert world.recorder.told == ["waits", "given"] * 2

    async def test_is_over_without_a_replica_where_none_loads(self, world: World) -> None:
        world.launcher.fail = "no such file"
        with pytest.raises(ModelLoadingError):
            await world.call()
        assert world.recorder.told == ["waits"]


class TestCancelled:
    @pytest.fixture
    async def cancelled(self, world: World) -> tuple[ReplicaHandle, int]:
        """Returns the replica and the number of a call that it was ordered to cancel."""
        call = world.call()
        replica = await world.loaded()
        (number,) = replica.pending
        call.cancel()
        await settle()
        assert not replica.outstanding
        assert not world.recorder.calls, "it has yet to tell what was done"
        return replica, number

    async def test_what_was_done_until_then_counts(
        self, world: World, cancelled: tuple[ReplicaHandle, int]
    ) -> None:
        replica, number = cancelled
        wire: Any = replica.channel
        wire.receive(Cancelled(number, {"output_tokens": 7}))
        wire.receive(Cancelled(number, {"output_tokens": 9}))
        (served,) = world.recorder.calls
        assert (served.outcome, served.counts) == (CANCELLED, {"output_tokens": 7})

    async def test_it_was_answered_already(
        self, world: World, cancelled: tuple[ReplicaHandle, int]
    ) -> None:
        replica, number = cancelled
        wire: Any = replica.channel
        wire.receive(RequestResult(number, {"output_tokens": 9}))
        (served,) = world.recorder.calls
        assert (served.outcome, served.counts) == (CANCELLED, {"output_tokens": 9})

    async def test_the_worker_is_lost(
        self, world: World, cancelled: tuple[ReplicaHandle, int]
    ) -> None:
        world.pool.exited(cancelled[0], -9)
        (served,) = world.recorder.calls
        assert (served.outcome, served.counts) == (CANCELLED, {})


class TestLostWorker:
    async def test_what_it_worked_on_is_not_retried(self, world: World) -> None:
        begun = world.call()
        replica = await world.loaded()
        answer_unknown(replica)
        replica.flight.running.update(replica.pending)
        waiting = world.call()
        await settle()
        world.pool.exited(replica, -11)
        with pytest.raises(CapacityError) as caught:
            await begun
        assert caught.value.code == "worker_lost"
        world.answer(await world.loaded())
        assert await waiting == b"[]"

    async def test_retried_once_only(self, world: World) -> None:
        call = world.call()
        for _ in range(2):
            replica = await world.loaded()
            answer_unknown(replica)
            world.pool.exited(replica, -9)
            await settle()
        with pytest.raises(CapacityError):
            await call
