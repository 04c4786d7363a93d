"""Tests of claims of replicas whose GPU memory moves to main memory and back."""

import asyncio

import pytest

from stoker.base.errors import CapacityError
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.devices import DeviceNeed
from stoker.runtime.local.memory.memory import MemoryAllocator, ReplicaEndedError
from tests.runtime.local import test_device_memory
from tests.runtime.local.test_memory import settle
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

    async def can_sleep(self, name: str, wanted: DeviceNeed = BIG, *, main: int = 10) -> None:
        await self.runs(name, wanted, main=main)
        self.replicas[name] = EvictionCandidate(name, True, self.now, can_sleep=True)

    def sleeps(self, name: str) -> None:
        """Ends the move to main memory."""
        self.falling.remove(name)
        self.memory.fell_asleep(name)

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
