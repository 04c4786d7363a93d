"""Tests of claims of replicas whose GPU memory moves to main memory and back."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.base.errors import CapacityError
from stoker.runtime.local.memory.budget import Need
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.devices import DeviceNeed
from stoker.runtime.local.memory.memory import MemoryAllocator, ReplicaEndedError
from tests.runtime.local import test_device_memory
from tests.runtime.local.test_memory import settle
from tests.support.examples import ALWAYS_THE_SAME, examples
from tests.support.graphics import device

BIG = DeviceNeed(size=60)


class World(test_device_memory.World):
    """Replicas on a machine with one device of 100 bytes."""

    def __init__(self, total: int = 1000) -> None:
        super().__init__(total, devices=[device(0, 100)])
        self.falling: list[str] = []

    def put_to_sleep(self, replica_id: str) -> None:
        self.falling.append(replica_id)
        del self.replicas[replica_id]

    async def can_sleep(
        self,
        name: str,
        wanted: DeviceNeed = BIG,
        *,
        main: int = 10,
        moved_bytes: int | None = None,
    ) -> None:
        await self.runs(name, wanted, main=main)
        self.replicas[name] = EvictionCandidate(
            name, True, self.now, can_sleep=True, moved_bytes=moved_bytes
        )

    def sleeps(self, name: str) -> None:
        """Ends the move to main memory."""
        self.falling.remove(name)
        self.memory.leave_devices(name)

    def ends_without_a_record(self, name: str) -> None:
        self.memory.release(name)

    def wakes(self, name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(self.memory.claim_device(name, f"dep-{name}", ""))


@pytest.fixture
async def world() -> World:
    return World()


async def test_main_memory_holds_what_the_device_held(world: World):
    await world.can_sleep("a")
    claim = world.wants("b", BIG)
    await settle()
    assert (world.falling, world.evicted, world.held) == (["a"], [], [70, 60])
    assert not claim.done()
    world.sleeps("a")
    await claim
    assert (world.on("a"), world.on("b"), world.held) == ([], [0], [80, 60])


async def test_it_ends_if_main_memory_has_no_room():
    world = World(total=75)
    await world.can_sleep("a")
    world.wants("b", BIG)
    await settle()
    # 10 for a, 60 for its device's memory and 10 for b are more than 75.
    assert (world.falling, world.evicted) == ([], ["a"])


async def test_one_of_several_devices_ends():
    world = World()
    world.devices = [device(0, 100), device(1, 100)]
    world.memory = MemoryAllocator(1000, world, lambda: world.now, devices=world.devices)
    world.books = [world.memory.main, *world.memory.devices]
    await world.can_sleep("a", DeviceNeed(size=60, count=2))
    world.wants("b", BIG)
    await settle()
    assert (world.falling, world.evicted) == ([], ["a"])


async def test_it_moves_less_than_it_held_and_keeps_a_rest(world: World):
    await world.can_sleep("a", moved_bytes=20)
    claim = world.wants("b", BIG)
    await settle()
    assert (world.falling, world.held) == (["a"], [30, 60])
    world.falling.clear()
    world.memory.fell_asleep("a", lambda _device: 7)
    await claim
    assert world.held == [40, 67] and world.memory.asleep_bytes("a") == 20
    world.loaded("b")
    # A cancelled wake keeps the rest.
    waking = world.wakes("a")
    await settle()
    waking.cancel()
    await settle()
    assert world.held == [40, 67]
    waking = world.wakes("a")
    await settle()
    world.ends("b")
    await waking
    assert world.held == [30, 60]
    world.memory.woke_up("a")
    assert world.held == [10, 60]


async def test_the_rest_of_a_sleeper_is_freed_for_a_claim(world: World):
    await world.can_sleep("a", moved_bytes=20)
    claim = world.wants("b", DeviceNeed(size=95))
    await settle()
    world.falling.clear()
    world.memory.fell_asleep("a", lambda _device: 7)
    world.replicas["a"] = EvictionCandidate("a", True, world.now)
    world.memory.settle()
    assert world.evicted == ["a"] and not claim.done()
    world.ends("a")
    await claim
    assert world.held == [10, 95]


async def test_a_rest_beyond_the_claim_is_cut(world: World):
    await world.can_sleep("a", moved_bytes=20)
    world.wants("b", BIG)
    await settle()
    world.memory.fell_asleep("a", lambda _device: 1000)
    assert world.held == [30, 60]


async def test_its_own_way_frees_several_devices():
    world = World()
    world.devices = [device(0, 100), device(1, 200), device(2, 300)]
    world.memory = MemoryAllocator(1000, world, lambda: world.now, devices=world.devices)
    world.books = [world.memory.main, *world.memory.devices]
    await world.can_sleep("a", DeviceNeed(share=0.6, count=2), moved_bytes=20)
    assert world.held == [10, 0, 120, 180]
    world.memory.take("c", Need("dep-c", 10), DeviceNeed(size=90, index=0))
    claim = world.wants("b", DeviceNeed(size=190))
    await settle()
    world.falling.clear()
    world.memory.fell_asleep("a", lambda _device: 5)
    await claim
    assert world.held == [50, 90, 5, 195]
    world.loaded("b")
    waking = world.wakes("a")
    await settle()
    assert world.evicted == ["b"]
    world.ends("b")
    await waking
    # It wakes on its devices, each with its own size.
    assert world.held == [40, 90, 120, 180]


async def test_it_wakes_on_its_device_and_frees_main_memory(world: World):
    await world.can_sleep("a")
    claim = world.wants("b", BIG)
    await settle()
    world.sleeps("a")
    await claim
    world.loaded("b")
    waking = world.wakes("a")
    await settle()
    assert world.evicted == ["b"] and not waking.done()
    world.ends("b")
    await waking
    assert world.held == [70, 60]
    world.memory.woke_up("a")
    assert world.held == [10, 60]


async def test_only_free_memory_if_nothing_waits_for_it(world: World):
    await world.can_sleep("a")
    claim = world.wants("b", BIG)
    await settle()
    world.sleeps("a")
    await claim
    assert not world.memory.has_device_room("a", "dep-a", "")
    assert not world.memory.take_device("a", "dep-a", "")
    world.ends_without_a_record("b")
    assert world.memory.has_device_room("a", "dep-a", "")
    assert world.memory.take_device("a", "dep-a", "") and world.on("a") == [0]


async def test_a_cancelled_wake_keeps_its_main_memory(world: World):
    await world.can_sleep("a")
    claim = world.wants("b", BIG)
    await settle()
    world.sleeps("a")
    await claim
    waking = world.wakes("a")
    await settle()
    waking.cancel()
    await settle()
    assert world.held == [80, 60] and world.memory.waiting() == []


async def test_its_end_frees_everything(world: World):
    await world.can_sleep("a")
    world.wants("b", BIG)
    await settle()
    world.sleeps("a")
    waking = world.wakes("a")
    await settle()
    world.memory.release("a")
    with pytest.raises(ReplicaEndedError):
        await waking
    assert world.memory.main.size("a") == 0 and world.memory.asleep_bytes("a") == 0


async def test_a_device_that_disappeared_wakes_nothing(world: World):
    await world.can_sleep("a")
    claim = world.wants("b", BIG)
    await settle()
    world.sleeps("a")
    await claim
    world.memory.found([])
    with pytest.raises(CapacityError, match="requires GPU 0"):
        await world.wakes("a")


class Crowd(test_device_memory.Crowd):
    """Replicas that also sleep and wake, as the example says."""

    def __init__(self) -> None:
        super().__init__(total=400)
        self.falling: set[str] = set()
        self.sleeping: set[str] = set()
        self.waking: dict[str, asyncio.Task[None]] = {}

    def put_to_sleep(self, replica_id: str) -> None:
        assert replica_id in self.replicas and replica_id not in self.sleeping
        self.falling.add(replica_id)
        self.replicas.pop(replica_id)

    def look(self) -> None:
        super().look()
        for name, candidate in list(self.replicas.items()):
            if name not in self.sleeping and not candidate.can_sleep:
                self.replicas[name] = EvictionCandidate(name, True, self.now, can_sleep=True)
        for name in self.falling - self.at_work:
            self.falling.discard(name)
            self.memory.leave_devices(name)
            self.sleeping.add(name)
            self.replicas[name] = EvictionCandidate(name, True, self.now)
            assert self.on(name) == []
        for name, task in list(self.waking.items()):
            if not task.done():
                continue
            del self.waking[name]
            if task.cancelled():
                assert self.on(name) == []
                self.replicas[name] = EvictionCandidate(name, True, self.now)
                continue
            assert task.exception() is None
            self.memory.woke_up(name)
            self.sleeping.discard(name)
            assert len(self.on(name)) == 1 and self.memory.asleep_bytes(name) == 0
            self.replicas[name] = EvictionCandidate(name, True, self.now, can_sleep=True)
        for name in self.sleeping - self.replicas.keys() - self.waking.keys():
            self.sleeping.discard(name)
            assert self.memory.asleep_bytes(name) == 0

    async def do(self, at: int, step: tuple) -> None:
        match step:
            case "wake", number if self.sleeping - self.waking.keys():
                names = sorted(self.sleeping - self.waking.keys() - set(self.evicted))
                if names:
                    name = names[number % len(names)]
                    del self.replicas[name]
                    self.waking[name] = asyncio.create_task(
                        self.memory.claim_device(name, f"dep-{name}", "")
                    )
                await self.settle()
            case "give up", number if self.waking:
                self.waking[sorted(self.waking)[number % len(self.waking)]].cancel()
                await self.settle()
            case _:
                await super().do(at, step)


steps = st.one_of(
    test_device_memory.steps,
    test_device_memory.steps,
    st.tuples(st.just("rest"), st.integers(0, 20)),
    st.tuples(st.just("wake"), st.integers(0, 20)),
    st.tuples(st.just("give up"), st.integers(0, 20)),
)


@settings(max_examples=examples(200), deadline=None, derandomize=ALWAYS_THE_SAME)
@given(st.lists(steps, max_size=60))
def test_whatever_sleeps_and_wakes_budgets_are_kept_and_all_are_served(
    example: list[tuple],
) -> None:
    async def tried() -> None:
        crowd = Crowd()
        for at, step in enumerate(example):
            await crowd.do(at, step)
        for _ in range(6 * len(example) + 10):
            if not crowd.asked and not crowd.waking:
                break
            crowd.now += 1
            crowd.memory.settle()
            await crowd.settle()
            crowd.at_work.clear()
            await crowd.settle()
        assert not crowd.asked and not crowd.waking, crowd.memory.waiting()

    asyncio.run(tried())
