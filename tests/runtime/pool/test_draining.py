"""Tests of when replicas end: idle, silent, without progress, or with an older specification."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.base.errors import CapacityError
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import Readiness
from stoker.wire.passes import Batches
from stoker.wire.protocol import Heartbeat
from tests.runtime.pool.world import LIMITS, SHUTDOWN, Wire, World, settle


class TestUpkeep:
    async def test_cold_stops_when_idle(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        world.clock.now += world.pool.spec.idle_timeout_s - 1
        world.pool.tick()
        assert replica.status is Status.READY
        world.clock.now += 1
        world.pool.tick()
        assert replica.status is Status.STOPPING
        world.pool.exited(replica, 0)
        assert world.pool.stats().status is Status.IDLE

    async def test_busy_never_stops(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.clock.now += 10_000
        replica.vitals.last_message_at = replica.vitals.last_progress_at = world.clock.now
        world.pool.tick()
        assert replica.status is Status.READY
        world.answer(replica)
        await call

    async def test_warm_stays_and_comes_back(self) -> None:
        world = World(readiness=Readiness.WARM)
        world.pool.tick()
        replica = await world.loaded()
        world.clock.now += 10_000
        replica.vitals.last_message_at = world.clock.now
        world.pool.tick()
        assert replica.status is Status.READY
        world.pool.exited(replica, -9)
        world.pool.tick()
        await world.loaded()
        assert world.pool.stats().status is Status.READY

    async def test_without_credit_nothing_idle_stays(self) -> None:
        world = World(readiness=Readiness.HOT)
        world.pool.tick()
        replica = await world.loaded()
        call = world.call()
        await settle()
        world.launcher.funded = False
        world.pool.tick()
        assert replica.status is Status.READY, "what was begun is finished"
        world.answer(replica)
        assert await call == b"[]"
        world.pool.tick()
        assert replica.status is Status.STOPPING
        world.pool.exited(replica, 0)
        assert world.recorder.changes[-1][0] is Status.IDLE
        world.pool.tick()
        await settle()
        assert len(world.launcher.launched) == 1
        world.launcher.funded = True
        world.pool.tick()
        await world.loaded()

    async def test_silent_is_killed(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.clock.now += LIMITS.heartbeat_timeout_s + 1
        world.pool.tick()
        world.pool.tick()
        assert world.launcher.killed == [replica.id]
        world.pool.exited(replica, -9)
        world.answer(await world.loaded())
        assert await call == b"[]"
        assert (Status.IDLE, Reason.STALLED) in world.recorder.changes

    async def test_alive_without_progress_is_killed(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.clock.now += LIMITS.stall_timeout_s + 1
        replica.vitals.last_message_at = world.clock.now
        world.pool.tick()
        assert world.launcher.killed == [replica.id]
        call.cancel()


def beat(progress: int = 0, accepted: int = 0, stuck_s: float = 0.0) -> Heartbeat:
    return Heartbeat(progress, accepted, 0, 0, 0.0, "torch", None, Batches(), stuck_s)


async def ready(world: World) -> tuple[ReplicaHandle, Wire]:
    """Returns a replica that has answered a call, and its connection."""
    call = world.call()
    replica = await world.loaded()
    world.answer(replica)
    await call
    wire: Any = replica.channel
    return replica, wire


class TestH4Hanging:
    """A replica counts as stalled by its own report, independently of waiting callers."""

    async def test_h4_work_that_nobody_waits_for_any_more(self, world: World) -> None:
        replica, wire = await ready(world)
        for second in range(int(LIMITS.stall_timeout_s)):
            world.clock.now += 1
            wire.receive(beat(accepted=1, stuck_s=second))
            world.pool.tick()
            assert world.launcher.killed == []
        world.clock.now += 1
        wire.receive(beat(accepted=1, stuck_s=LIMITS.stall_timeout_s + 1))
        world.pool.tick()
        assert world.launcher.killed == [replica.id]
        world.pool.exited(replica, -9)
        assert world.recorder.changes[-1] == (Status.IDLE, Reason.STALLED)
        assert world.pool.stats().message == (
            "A replica was ended: it made no progress on accepted work for 31 s."
        )

    async def test_h4_one_caller_at_a_time_resets_nothing(self, world: World) -> None:
        """Each caller gives up before the replica counts as stalled, as with the defaults."""
        replica, wire = await ready(world)
        for _ in range(4):
            call = world.call()
            await settle()
            for _ in range(10):
                world.clock.now += 1
                wire.receive(beat(accepted=1))
                world.pool.tick()
            call.cancel()
            await settle()
        assert world.launcher.killed == [replica.id]

    async def test_h4_a_thread_that_hangs_beside_others_that_do_not(self, world: World) -> None:
        replica, wire = await ready(world)
        wire.receive(beat(progress=7, accepted=2, stuck_s=LIMITS.stall_timeout_s + 1))
        world.pool.tick()
        assert world.launcher.killed == [replica.id]

    async def test_h4_what_was_idle_for_long_is_not_blamed_for_it(self, world: World) -> None:
        _, wire = await ready(world)
        for _ in range(50):
            world.clock.now += 1
            wire.receive(beat(progress=1))
        call = world.call()
        await settle()
        world.clock.now += 1
        wire.receive(beat(progress=1, accepted=1))
        world.pool.tick()
        assert world.launcher.killed == []
        call.cancel()


class TestH4Stopping:
    """A replica that does not end when requested is ended by force, for any reason."""

    @pytest.mark.parametrize("reason", ["evicted", "changed", "stopped"])
    async def test_h4_one_that_was_told_to_end_and_does_not(
        self, world: World, reason: str
    ) -> None:
        replica, wire = await ready(world)
        if reason == "evicted":
            world.pool.evict(replica)
        elif reason == "changed":
            world.pool.apply(replace(world.pool.spec, dtype="bfloat16"), running=True)
            await world.loaded()
        else:
            world.pool.stop(Reason.STOPPED_BY_USER)
        assert wire.sent[-1] == SHUTDOWN
        for _ in range(int(LIMITS.stop_grace_s)):
            world.clock.now += 1
            wire.receive(beat(accepted=1))
            world.pool.tick()
        assert replica.id not in world.launcher.killed
        world.clock.now += 1
        wire.receive(beat(accepted=1))
        world.pool.tick()
        assert replica.id in world.launcher.killed
        assert replica.kill_cause.details == "it did not stop within 5 s"

    async def test_h4_one_that_is_silent_while_it_stops(self) -> None:
        world = World()
        replica, _ = await ready(world)
        call = world.call()
        await settle()
        world.pool.evict(replica)
        world.clock.now += LIMITS.heartbeat_timeout_s + 1
        world.pool.tick()
        assert world.launcher.killed == [replica.id]
        world.pool.exited(replica, -9)
        assert Reason.STALLED in [reason for _, reason in world.recorder.changes]
        call.cancel()

    async def test_h4_one_that_is_drained_and_gets_on_may_finish(self, world: World) -> None:
        replica, wire = await ready(world)
        call = world.call()
        await settle()
        world.pool.evict(replica)
        for step in range(200):
            world.clock.now += 1
            wire.receive(beat(progress=step, accepted=1))
            world.pool.tick()
        assert world.launcher.killed == []
        assert SHUTDOWN not in wire.sent
        world.answer(replica)
        assert await call == b"[]"
        assert wire.sent[-1] == SHUTDOWN

    async def test_h4_one_that_is_drained_and_does_not_get_on_is_ended(self, world: World) -> None:
        replica, wire = await ready(world)
        call = world.call()
        await settle()
        world.pool.evict(replica)
        for _ in range(int(LIMITS.stall_timeout_s) + 2):
            world.clock.now += 1
            wire.receive(beat(accepted=1))
            world.pool.tick()
        assert world.launcher.killed == [replica.id]
        call.cancel()


class TestH5Memory:
    async def test_h5_who_is_ended_for_memory_is_not_tried_elsewhere(self, world: World) -> None:
        replica, _ = await ready(world)
        call = world.call()
        await settle()
        flight: Any = replica.flight
        flight.running = set(replica.pending)
        world.pool.end(replica, Reason.MEMORY_EXCEEDED, "it held 4 GiB")
        world.pool.exited(replica, -9)
        with pytest.raises(CapacityError, match="ended while it worked on this request: it held 4"):
            await call
        assert len(world.launcher.launched) == 1
        assert world.recorder.changes[-1] == (Status.FAILED, Reason.MEMORY_EXCEEDED)
        with pytest.raises(CapacityError, match="retried in 10 s"):
            await world.call()

    async def test_h5_while_it_loads(self, world: World) -> None:
        call = world.call()
        await settle()
        (replica,) = world.launcher.launched
        world.pool.end(replica, Reason.MEMORY_EXCEEDED, "it held 4 GiB")
        world.pool.exited(replica, -9)
        with pytest.raises(CapacityError, match="it held 4 GiB"):
            await call
        assert world.recorder.changes[-1] == (Status.FAILED, Reason.MEMORY_EXCEEDED)


class TestChange:
    async def test_new_dtype_is_swapped_in_live(self, world: World) -> None:
        call = world.call()
        old = await world.loaded()
        world.answer(old)
        await call
        world.pool.apply(replace(world.pool.spec, dtype="bfloat16"), running=True)
        during = world.call()
        await settle()
        assert old.outstanding == 1
        world.answer(old)
        assert await during == b"[]"
        new = await world.loaded()
        assert old.status is Status.STOPPING
        after = world.call()
        await settle()
        assert new.outstanding == 1
        world.answer(new)
        await after
