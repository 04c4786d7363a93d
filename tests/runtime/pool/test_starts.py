"""Tests of replica starts: one start for all waiting calls, memory first, and backoff after
failures.
"""

import asyncio
from typing import Any

import pytest

from stoker.base.errors import CapacityError, ModelLoadingError
from stoker.runtime.listening import Listeners
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.backoff import INITIAL_S, MAX_EARLY_ENDS
from stoker.runtime.pool.callbacks import ReplicaCallbacks
from stoker.runtime.pool.conversion_state import PROVED_ANSWERS, PROVED_S
from stoker.runtime.pool.routing import CLAIM_KEPT_S
from stoker.runtime.specification import Readiness
from stoker.wire.protocol import Loaded, Sharing
from tests.runtime.pool.world import LIMITS, SHUTDOWN, Recorder, World, answer_unknown, settle


class TestStart:
    async def test_one_start_for_all_who_wait(self, world: World) -> None:
        calls = [world.call() for _ in range(50)]
        replica = await world.loaded()
        assert len(world.launcher.launched) == 1
        world.answer(replica)
        assert await asyncio.gather(*calls) == [b"[]"] * 50

    async def test_states(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        assert world.recorder.changes == [
            (Status.STARTING, Reason.REQUEST),
            (Status.READY, Reason.LOADED),
        ]

    async def test_no_wait(self, world: World) -> None:
        with pytest.raises(ModelLoadingError) as caught:
            await world.call(wait_s=0)
        assert caught.value.headers["retry-after"]
        assert caught.value.progress == 0
        await world.loaded()

    async def test_waits_no_longer_than_asked(self, world: World) -> None:
        call = world.call(wait_s=0.01)
        await settle()
        world.clock.now += 1
        with pytest.raises(ModelLoadingError):
            await call
        await world.loaded()


class TestAnnouncing:
    """No fallible step lies between a change of state and its announcement."""

    @pytest.mark.fault("c6")
    async def test_a_load_whose_measurements_are_lost(self, world: World) -> None:
        def full(_: object) -> None:
            raise OSError(28, "No space left on device")

        world.launcher.callbacks = ReplicaCallbacks(on_sharing=full)
        call = world.call()
        await settle()
        (replica,) = world.launcher.launched
        with pytest.raises(OSError, match="No space"):
            replica._load(Loaded(1.0, convertible=False, sharing=Sharing.PADDED))
        await settle()
        world.answer(replica)
        assert await call == b"[]"
        assert world.pool.stats().status is Status.READY

    @pytest.mark.fault("c6")
    async def test_a_listener_that_fails(self) -> None:
        class Failing(Recorder):
            def changed(self, *_: object) -> None:
                raise OSError(28, "No space left on device")

            def loaded(self, *_: object) -> None:
                raise OSError(28, "No space left on device")

        listeners, recorder = Listeners(), Recorder()
        listeners.add(Failing(), recorder)
        world = World(listener=listeners)
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        assert await call == b"[]"
        assert recorder.changes[-1] == (Status.READY, Reason.LOADED)


class TestFailingLoad:
    async def test_backs_off_and_doubles(self, world: World) -> None:
        world.launcher.fail = "no such file"
        for expected in (INITIAL_S, 2 * INITIAL_S, 4 * INITIAL_S):
            with pytest.raises(ModelLoadingError, match="no such file"):
                await world.call()
            assert world.pool.stats().status is Status.FAILED
            assert not world.launcher.launched
            world.clock.now += expected - 1
            with pytest.raises(ModelLoadingError) as caught:
                await world.call()
            assert caught.value.headers["retry-after"] == "1"
            world.clock.now += 1.5
        world.launcher.fail = None
        call = world.call()
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_ending_while_loading_counts(self, world: World) -> None:
        call = world.call()
        await settle()
        world.pool.exited(world.launcher.launched[0], -11)
        with pytest.raises(ModelLoadingError, match="signal 11"):
            await call
        assert (Status.FAILED, Reason.LOAD_FAILED) in world.recorder.changes

    async def test_ending_right_after_loading_counts(self, world: World) -> None:
        """The process may end before the task that waits for the load runs again."""
        call = world.call()
        await settle()
        (replica,) = world.launcher.launched
        wire: Any = replica.channel
        wire.receive(Loaded(1.0, convertible=False))
        world.pool.exited(replica, -11)
        with pytest.raises(ModelLoadingError, match="signal 11"):
            await call
        assert (Status.FAILED, Reason.LOAD_FAILED) in world.recorder.changes

    async def test_changing_the_deployment_forgets_it(self, world: World) -> None:
        world.launcher.fail = "no such file"
        with pytest.raises(ModelLoadingError):
            await world.call()
        world.launcher.fail = None
        world.pool.apply(world.pool.spec, running=True)
        call = world.call()
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_what_waiting_cannot_change_is_not_tried_again(self, world: World) -> None:
        world.launcher.fail, world.launcher.lasting = "ImportError: it needs timm.", True
        with pytest.raises(ModelLoadingError):
            await world.call()
        world.launcher.fail = None
        world.clock.now += 1e6
        world.pool.tick()
        again = r"needs timm\. The load is retried once"
        with pytest.raises(ModelLoadingError, match=again) as caught:
            await world.call()
        assert caught.value.headers == {"x-should-retry": "false"}
        assert world.pool.stats().status is Status.FAILED
        assert not world.launcher.launched
        world.pool.apply(world.pool.spec, running=True)
        call = world.call()
        world.answer(await world.loaded())
        assert await call == b"[]"


class TestCrashLoop:
    async def ended(self, world: World, status: int, *, answers: int = 1, lived: float = 6) -> None:
        """Starts a replica that answers a few calls and ends by itself."""
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        answer_unknown(replica, answers - 1)
        world.clock.now += lived
        world.pool.exited(replica, status)
        await settle()

    async def test_ends_in_failed(self, world: World) -> None:
        for _ in range(MAX_EARLY_ENDS - 1):
            await self.ended(world, -11)
            assert world.pool.stats().status is Status.IDLE
        await self.ended(world, -11)
        stats = world.pool.stats()
        assert (stats.status, stats.reason) == (Status.FAILED, Reason.WORKER_LOST)
        assert "replica after replica ended soon after its start" in stats.message
        assert "signal 11 (SIGSEGV)" in stats.message
        with pytest.raises(ModelLoadingError, match="retried in 10 s"):
            await world.call()
        # The start is retried, and the next pause is longer.
        world.clock.now += INITIAL_S
        await self.ended(world, -11)
        with pytest.raises(ModelLoadingError, match="retried in 20 s"):
            await world.call()

    @pytest.mark.parametrize(("answers", "lived"), [(PROVED_ANSWERS, 6), (1, PROVED_S)])
    async def test_one_that_has_proved_itself_begins_anew(
        self, world: World, answers: int, lived: float
    ) -> None:
        for _ in range(MAX_EARLY_ENDS - 1):
            await self.ended(world, -11)
        await self.ended(world, -11, answers=answers, lived=lived)
        for _ in range(MAX_EARLY_ENDS - 1):
            await self.ended(world, -11)
            assert world.pool.stats().status is Status.IDLE

    async def test_what_others_end_is_no_loop(self, world: World) -> None:
        for _ in range(2 * MAX_EARLY_ENDS):
            await self.ended(world, -9)
        assert world.pool.stats().status is Status.IDLE

    async def test_ending_at_the_first_pass_doubles_the_pause(self, world: World) -> None:
        """A successful load does not reset the backoff."""
        for pause in (INITIAL_S, 2 * INITIAL_S, 4 * INITIAL_S):
            call = world.call()
            replica = await world.loaded()
            replica.flight.running.update(replica.pending)
            world.pool.exited(replica, -8)
            with pytest.raises(CapacityError):
                await call
            with pytest.raises(ModelLoadingError, match=f"retried in {pause:.0f} s"):
                await world.call()
            world.clock.now += pause


class TestMemory:
    async def test_what_can_never_fit_is_told_at_once(self, world: World) -> None:
        world.launcher.too_large = True
        for _ in range(2):
            with pytest.raises(CapacityError, match="It needs 9 GiB"):
                await world.call()
            assert world.pool.stats().status is Status.FAILED
        assert world.recorder.changes.count((Status.FAILED, Reason.INSUFFICIENT_MEMORY)) == 1
        world.launcher.too_large = False
        call = world.call()
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_who_waits_in_vain_is_told_why(self, world: World) -> None:
        world.launcher.memory.clear()
        call = world.call(wait_s=0.01)
        await settle()
        world.clock.now += 1
        with pytest.raises(CapacityError, match="It needs 3 GiB") as caught:
            await call
        assert caught.value.code == "insufficient_memory"
        assert caught.value.headers["retry-after"] == "5"

    async def test_waiting_for_it_takes_nothing_of_the_time_to_load(self, world: World) -> None:
        world.launcher.memory.clear()
        call = world.call()
        await settle()
        world.clock.now += 2 * LIMITS.load_timeout_s
        world.launcher.memory.set()
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_the_place_is_given_up_when_nobody_waits(self, world: World) -> None:
        world.launcher.memory.clear()
        call = world.call()
        await settle()
        call.cancel()
        await settle()
        world.clock.now += CLAIM_KEPT_S - 1
        world.pool.tick()
        await settle()
        assert world.pool.stats().status is Status.STARTING
        world.clock.now += 2
        world.pool.tick()
        await settle()
        assert world.pool.stats().status is Status.IDLE
        world.launcher.memory.set()
        await settle()
        assert not world.launcher.launched

    async def test_who_gives_way_finishes_first(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.pool.evict(replica)
        second = world.call()
        await settle()
        world.clock.now += LIMITS.stop_grace_s + 1
        replica.channel.receive()
        world.pool.tick()
        assert not world.launcher.killed
        assert replica.channel.sent[-1] != SHUTDOWN
        world.answer(replica)
        assert await call == b"[]"
        assert replica.channel.sent[-1] == SHUTDOWN
        world.answer(await world.loaded())
        assert await second == b"[]"

    async def test_ended_by_the_kernel(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        replica.vitals.own_bytes = 3 << 30
        world.pool.exited(replica, -9, out_of_memory=True)
        with pytest.raises(CapacityError, match=r"ran out of memory: .*held 3\.0 GiB"):
            await call
        assert world.recorder.changes[-1] == (Status.FAILED, Reason.OUT_OF_MEMORY)
        world.pool.tick()
        await settle()
        assert len(world.launcher.launched) == 1, "it is not started again at once"

    async def test_warm_waits_for_room(self) -> None:
        world = World(readiness=Readiness.WARM)
        world.launcher.memory.clear()
        world.pool.tick()
        await settle()
        assert world.pool.stats().status is Status.IDLE, "nobody gives way for it"
        world.launcher.memory.set()
        world.pool.tick()
        await world.loaded()
        assert world.pool.stats().status is Status.READY
