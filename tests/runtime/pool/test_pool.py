"""One deployment's replicas with a clock and a launcher that the test holds in its hands."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stoker.errors import CapacityError, ConflictError, ModelLoadingError, RateLimitError
from stoker.runtime.interface import (
    CANCELLED,
    Call,
    DeploymentSpec,
    LoadError,
    Readiness,
    Reason,
    RuntimeListener,
    Served,
    Status,
)
from stoker.runtime.pool.backoff import INITIAL_S, MAX_EARLY_ENDS
from stoker.runtime.pool.deployment_pool import EARLY_END_S, DeploymentPool
from stoker.runtime.pool.handle import PROVED_ANSWERS, PROVED_S, ReplicaHandle
from stoker.runtime.pool.launcher import Limits
from stoker.runtime.pool.routing import CLAIM_KEPT_S, SCALE_UP_AT
from stoker.wire.protocol import (
    Cancelled,
    Execution,
    FromReplica,
    LoadFailed,
    Loading,
    Result,
    Shutdown,
    pack,
)

CALL = Call(task="fill-mask", items=["a"], parameters={}, single=True)
SPEC = DeploymentSpec(id="dep_1", account_id="acct_1", model="m", pipeline="fill-mask", source="s")
SHUTDOWN = pack(Shutdown())
EXECUTION = Execution("/converted", "bf16", "/compiled")
LIMITS = Limits(load_timeout_s=5, heartbeat_timeout_s=10, stall_timeout_s=30, stop_grace_s=5)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """Takes what is sent; replies come from the test."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def listen(self, received: Any) -> None:
        self._received = received

    def receive(self, message: FromReplica | None = None) -> None:
        """By default something of no matter, which shows that the replica lives."""
        self._received([msgspec.msgpack.encode(message or Loading(1.0, "")), b""])

    def send(self, frames: list[bytes]) -> None:
        self.sent.append(frames)

    def close(self) -> None: ...


class Flight:
    """What a replica is working on, as the test says."""

    def __init__(self) -> None:
        self.preparing: set[int] = set()
        self.running: set[int] = set()

    def read_slots(self) -> tuple[set[int], set[int]]:
        return self.preparing, self.running

    def remove(self) -> None: ...


class Launcher:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.launched: list[ReplicaHandle] = []
        self.killed: list[str] = []
        self.fail: str | None = None
        self.lasting = False
        self.too_large = False
        self.funded = True
        self.quarantined: list[tuple[Execution, str]] = []
        self.memory = asyncio.Event()
        self.memory.set()

    async def claim(self, spec: DeploymentSpec, *, is_needed: bool) -> str | None:
        if self.too_large:
            raise CapacityError("It needs 9 GiB.", code="insufficient_memory")
        if not is_needed and not self.memory.is_set():
            return None
        await self.memory.wait()
        return f"rep_{len(self.launched)}"

    def has_room(self, spec: DeploymentSpec) -> bool:
        return self.memory.is_set()

    def shortage(self, spec: DeploymentSpec) -> str:
        return "It needs 3 GiB."

    def ending(self, replica_id: str) -> None: ...

    def is_funded(self, spec: DeploymentSpec) -> bool:
        return self.funded

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        if self.fail:
            raise LoadError(self.fail, lasting=self.lasting)
        channel: Any = Wire()
        replica = ReplicaHandle(
            id=replica_id,
            flight=Flight(),
            generation=generation,
            channel=channel,
            clock=self.clock,
        )
        self.launched.append(replica)
        return replica

    def quarantine(self, execution: Execution, reason: str) -> str:
        self.quarantined.append((execution, reason))
        return f"{reason} It is set aside."

    def kill(self, replica_id: str) -> None:
        self.killed.append(replica_id)

    def pid(self, replica_id: str) -> int | None:
        return 1


class Recorder(RuntimeListener):
    def __init__(self) -> None:
        self.changes: list[tuple[Status, Reason]] = []
        self.calls: list[Served] = []

    def changed(self, deployment_id: str, status: Status, reason: Reason, message: str) -> None:
        self.changes.append((status, reason))

    def served(self, call: Served) -> None:
        self.calls.append(call)


class World:
    def __init__(self, **spec: Any) -> None:
        self.clock = Clock()
        self.launcher = Launcher(self.clock)
        self.recorder = Recorder()
        self.pool = DeploymentPool(
            spec=replace(SPEC, **spec),
            running=True,
            launcher=self.launcher,
            limits=LIMITS,
            listener=self.recorder,
            clock=self.clock,
        )

    def call(self, wait_s: float = 60) -> "asyncio.Task[bytes]":
        return asyncio.create_task(self.pool.call(CALL, wait_s=wait_s, timeout_s=60))

    async def loaded(self, index: int = -1) -> ReplicaHandle:
        await settle()
        replica = self.launcher.launched[index]
        replica.loaded.set_result(None)
        await settle()
        return replica

    async def answer_first(self, replica: ReplicaHandle) -> None:
        """The oldest call, after a second."""
        self.clock.now += 1
        answer = next(one for one in replica.pending.values() if not one.ended)
        answer.add(b"[]")
        answer.end()
        await settle()

    def answer(self, replica: ReplicaHandle) -> None:
        for answer in replica.pending.values():
            if not answer.ended:
                answer.add(b"[]")
                answer.end()
        replica.answered += 1


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


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
        again = r"needs timm\. It is tried again once"
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
        """A replica was started, has answered a little and ended by itself."""
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        replica.answered = answers
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
        with pytest.raises(ModelLoadingError, match="tried again in 10 s"):
            await world.call()
        # It is tried again, and the next pause is longer.
        world.clock.now += INITIAL_S
        await self.ended(world, -11)
        with pytest.raises(ModelLoadingError, match="tried again in 20 s"):
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
        """A load that succeeds is no reason to forget it."""
        for pause in (INITIAL_S, 2 * INITIAL_S, 4 * INITIAL_S):
            call = world.call()
            replica = await world.loaded()
            replica.flight.running.update(replica.pending)
            world.pool.exited(replica, -8)
            with pytest.raises(CapacityError):
                await call
            with pytest.raises(ModelLoadingError, match=f"tried again in {pause:.0f} s"):
                await world.call()
            world.clock.now += pause


class TestConverted:
    async def ended(self, world: World, status: int, **fields: Any) -> ReplicaHandle:
        """A replica has begun with a conversion, and ended."""
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        replica.begin_with(EXECUTION)
        for name, value in fields.items():
            setattr(replica, name, value)
        world.pool.exited(replica, status)
        await settle()
        return replica

    async def test_is_set_aside_by_a_crash(self, world: World) -> None:
        await self.ended(world, -8)
        ((execution, reason),) = world.launcher.quarantined
        assert execution is EXECUTION
        assert reason == "A replica ended by signal 8 (SIGFPE) soon after it began to use it."
        assert Reason.ENGINE_SET_ASIDE in [reason for _, reason in world.recorder.changes]
        # The next one starts at once.
        call = world.call()
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_is_set_aside_by_a_hang(self, world: World) -> None:
        await self.ended(world, -9, kill_reason=Reason.STALLED)
        ((_, reason),) = world.launcher.quarantined
        assert reason.startswith("A replica hung and was ended soon after")

    async def test_is_not_to_blame_for_what_others_end(self, world: World) -> None:
        await self.ended(world, -9)
        assert not world.launcher.quarantined

    async def test_is_not_to_blame_once_it_has_served(self, world: World) -> None:
        await self.ended(world, -11, answered=1 + PROVED_ANSWERS)
        assert not world.launcher.quarantined

    async def test_is_not_to_blame_for_an_input_that_is_decoded(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        replica.begin_with(EXECUTION)
        replica.flight.preparing.update(replica.pending)
        world.clock.now += EARLY_END_S
        world.pool.exited(replica, -11)
        assert not world.launcher.quarantined
        with pytest.raises(CapacityError):
            await call

    async def test_that_dies_while_it_is_loaded_costs_no_pause(self, world: World) -> None:
        call = world.call()
        await settle()
        (first,) = world.launcher.launched
        first.begin_with(EXECUTION)
        world.pool.exited(first, -8)
        await settle()
        assert len(world.launcher.quarantined) == 1
        world.answer(await world.loaded())
        assert await call == b"[]"
        assert Status.FAILED not in [status for status, _ in world.recorder.changes]

    async def test_that_cannot_be_loaded_any_more(self, world: World) -> None:
        """Its cache is broken, say."""
        call = world.call()
        await settle()
        (first,) = world.launcher.launched
        first.begin_with(EXECUTION)
        wire: Any = first.channel
        wire.receive(LoadFailed("RuntimeError: no such file."))
        await settle()
        ((_, reason),) = world.launcher.quarantined
        assert reason == "It could not be loaded: RuntimeError: no such file."
        world.pool.exited(first, 0)
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_that_hangs_while_it_is_loaded(self) -> None:
        world = World()
        world.pool._starts._limits = replace(LIMITS, load_timeout_s=0.01)
        call = world.call()
        await settle()
        (first,) = world.launcher.launched
        first.begin_with(EXECUTION)
        with pytest.raises(ModelLoadingError, match="not loaded in"):
            await call
        assert world.launcher.killed == [first.id]
        world.pool.exited(first, -9)
        assert len(world.launcher.quarantined) == 1

    async def test_no_other_engine_may_take_its_place(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.pool.fail_engine("OpenVINO cannot run it. Set 'engine' to 'auto'.")
        assert (Status.FAILED, Reason.ENGINE_FAILED) in world.recorder.changes
        with pytest.raises(ModelLoadingError, match="Set 'engine' to 'auto'"):
            await world.call()
        world.answer(replica)
        assert await call == b"[]", "what was begun is finished"
        told = list(world.recorder.changes)
        world.pool.exited(replica, 0)
        stats = world.pool.stats()
        assert (stats.status, stats.reason) == (Status.FAILED, Reason.ENGINE_FAILED)
        assert stats.message == "OpenVINO cannot run it. Set 'engine' to 'auto'.", "it stays said"
        assert world.recorder.changes == told


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
        assert await_free(world)

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
        # 21 answers in ten seconds, and 30 wait.
        assert caught.value.headers["retry-after"] == "15"
        world.answer(replica)
        await asyncio.gather(*calls)

    async def test_who_would_be_answered_too_late_is_turned_away(self, world: World) -> None:
        calls = [world.call() for _ in range(50)]
        replica = await world.loaded()
        # One a second, in turn, each followed by the next one: there are always 50.
        for _ in range(100):
            await world.answer_first(replica)
            calls.append(world.call())
            await settle()
        calls += [world.call() for _ in range(9)]
        await settle()
        assert not [one for one in calls if one.done() and one.exception()]
        with pytest.raises(RateLimitError) as caught:
            await world.call()
        assert caught.value.code == "queue_full"
        assert "with the 59 requests before it" in caught.value.message
        assert "about 60 s, and it has 60 s" in caught.value.message
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
        assert not [one for one in more if one.done()], "another replica is on its way"
        await world.loaded()
        world.pool.exited(replica, 0)
        more += [world.call() for _ in range(40)]
        await settle()
        assert not [one for one in more[40:] if one.done()], "nothing is known of it"
        world.answer(world.launcher.launched[-1])
        await asyncio.gather(*more[40:])
        for one in (*calls, *more):
            one.cancel()

    async def test_stopped(self, world: World) -> None:
        world.pool.apply(world.pool.spec, running=False)
        with pytest.raises(ConflictError, match="stopped"):
            await world.call()


def await_free(world: World) -> bool:
    return world.pool.stats().calls == 0


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


class TestRouting:
    async def test_least_busy(self) -> None:
        world = World(min_replicas=2, max_replicas=2)
        world.pool.tick()
        await world.loaded(0)
        world.pool.tick()
        await world.loaded(1)
        calls = [world.call() for _ in range(10)]
        await settle()
        assert [one.outstanding for one in world.launcher.launched] == [5, 5]
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
        failures = [one for one in world.recorder.changes if one[1] is Reason.LOAD_FAILED]
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
        one = await world.loaded()
        two = await world.loaded()
        assert one is not two
        await settle()
        assert sorted([one.outstanding, two.outstanding]) == [1, 2]
        world.answer(one)
        world.answer(two)
        assert await asyncio.gather(first, second, third) == [b"[]"] * 3


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


class TestCancelled:
    @pytest.fixture
    async def cancelled(self, world: World) -> tuple[ReplicaHandle, int]:
        """The replica and the number of a call that it was told to drop."""
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
        wire.receive(Result(number, {"output_tokens": 9}))
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
        replica.answered = 1
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
            replica.answered = 1
            world.pool.exited(replica, -9)
            await settle()
        with pytest.raises(CapacityError):
            await call


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
