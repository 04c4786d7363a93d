"""When replicas end: idle, silent, without progress, of an older specification."""

from dataclasses import replace

from stoker.runtime.interface import Readiness, Reason, Status
from tests.runtime.pool.world import LIMITS, World, settle


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
