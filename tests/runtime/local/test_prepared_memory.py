"""Tests of the claims of prepared workers, which give way to replicas or are replaced by them."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.devices import DeviceNeed
from stoker.runtime.local.memory.waiting import PATIENCE_S
from tests.runtime.local import test_device_memory
from tests.runtime.local.test_memory import settle
from tests.support.examples import ALWAYS_THE_SAME, examples

CONTEXT, MAIN = 10, 5
PLAIN = DeviceNeed(size=60)
FITTING = DeviceNeed(size=60, takes_prepared=True)


class World(test_device_memory.World):
    def prepares(self, name: str, index: int = 0, *, usable: bool = True) -> bool:
        device = self.memory.devices[index]
        if self.memory.is_short or not self.memory.prepared.enter(name, device, CONTEXT, MAIN):
            return False
        self.memory.prepared.mark_usable(name, is_usable=usable)
        self.replicas[name] = EvictionCandidate(name, False, self.now, is_prepared=True)
        return True

    def starts_in_worker(self, replica_id: str) -> str | None:
        worker = self.memory.prepared.worker(replica_id)
        self.memory.prepared.forget(replica_id)
        self.replicas.pop(worker or "", None)
        return worker


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_worker_is_counted_and_shown(world: World):
    assert world.prepares("w", usable=False)
    assert world.held == [MAIN, CONTEXT, 0]
    assert [device.prepared_workers for device in world.memory.device_stats()] == [0, 0]
    world.memory.prepared.mark_usable("w", is_usable=True)
    assert [device.prepared_workers for device in world.memory.device_stats()] == [1, 0]


async def test_a_replica_replaces_the_claim_of_its_worker(world: World):
    world.prepares("w", index=1)
    await world.runs("a", FITTING)
    assert (world.on("a"), world.held) == ([1], [10, 0, 60])
    assert world.starts_in_worker("a") == "w"
    world.ends("a")
    assert world.held == [0, 0, 0]


async def test_the_bytes_of_its_worker_count_as_free(world: World):
    world.prepares("w")
    await world.runs("a", DeviceNeed(size=100, index=0, takes_prepared=True))
    assert (world.held, world.evicted) == ([10, 100, 0], [])


async def test_a_replica_that_needs_a_process_of_its_own_leaves_the_worker(world: World):
    world.prepares("w")
    await world.runs("a", DeviceNeed(size=60, index=0))
    assert world.memory.prepared.worker("a") is None
    assert (world.held, world.evicted) == ([10 + MAIN, 60 + CONTEXT, 0], [])


async def test_a_worker_ends_before_any_replica(world: World):
    await world.runs("old", DeviceNeed(size=30, index=0))
    world.now += 1
    world.prepares("w")
    claim = world.wants("new", DeviceNeed(size=70, index=0))
    await settle()
    assert world.evicted == ["w"] and not claim.done()
    world.ends("w")
    await claim
    assert world.held == [20, 100, 0]


async def test_a_worker_stays_if_its_bytes_are_not_enough(world: World):
    await world.runs("old", DeviceNeed(size=80, index=0))
    world.prepares("w")
    world.wants("new", DeviceNeed(size=85, index=0))
    await settle()
    assert world.evicted == ["old"]


async def test_a_worker_ends_for_a_device_with_a_replica_that_stays(world: World):
    await world.runs("idle", DeviceNeed(size=60, index=0))
    await world.runs("busy", DeviceNeed(size=50, index=1), busy=True)
    world.prepares("w", index=1)
    world.wants("new", DeviceNeed(size=45))
    await settle()
    assert world.evicted == ["w"], "and not the idle replica"


async def test_workers_of_no_account_change_no_share(world: World):
    world.prepares("w")
    book = world.memory.devices[0]
    await world.runs("a", DeviceNeed(size=40, index=0), "A")
    await world.runs("b", DeviceNeed(size=40, index=0), "B")
    assert book.by_account() == {"A": 40, "B": 40}
    assert book.fair_share(()) == 50
    world.wants("c", DeviceNeed(size=20, index=0), "A")
    await settle()
    assert world.evicted == ["w"]


async def test_no_worker_while_a_claim_waits_or_memory_is_reserved(world: World):
    await world.runs("busy", DeviceNeed(size=95, index=0), busy=True)
    assert not world.prepares("w"), "5 are free"
    await world.runs("small", DeviceNeed(size=20, index=1))
    world.memory.reserve(Need("dep-hot", 10), DeviceNeed(size=75, index=1))
    assert not world.prepares("w", index=1)
    world.memory.unreserve("dep-hot")
    world.wants("waits", DeviceNeed(size=60, index=0))
    await settle()
    assert not world.prepares("w", index=1)


async def test_an_optional_claim_ends_workers_first(world: World):
    await world.runs("a", DeviceNeed(size=60, index=0))
    world.prepares("w")
    need, wanted = Need("dep-b", 10), DeviceNeed(size=40, index=0)
    assert world.memory.has_room(need, wanted)
    assert not world.memory.take("b", need, wanted)
    assert world.evicted == ["w"]
    world.ends("w")
    assert world.memory.take("b", need, wanted)
    assert not world.memory.has_room(need, wanted) and world.evicted == ["w"]


async def test_a_worker_that_was_not_used_has_its_claim_again(world: World):
    world.prepares("w")
    await world.runs("a", DeviceNeed(size=60, index=0, takes_prepared=True))
    assert world.held == [10, 60, 0]
    world.memory.prepared.give_back("a")
    world.memory.settle()
    assert world.held == [10 + MAIN, 60 + CONTEXT, 0]
    assert world.memory.prepared.worker("a") is None


async def test_a_start_that_fails_gives_its_worker_back(world: World):
    world.prepares("w")
    await world.runs("a", FITTING)
    world.ends("a")
    assert world.held == [MAIN, CONTEXT, 0]
    assert await world.runs("b", FITTING) is None
    assert world.memory.prepared.worker("b") == "w"


async def test_a_worker_without_room_of_its_own_ends_when_it_is_given_back(world: World):
    world.prepares("w")
    await world.runs("a", DeviceNeed(size=100, index=0, takes_prepared=True))
    world.memory.prepared.give_back("a")
    world.memory.settle()
    assert world.evicted == ["w"]


async def test_a_worker_that_died_has_no_claim(world: World):
    world.prepares("w")
    await world.runs("a", FITTING)
    del world.replicas["w"]
    world.memory.release("w")
    assert world.memory.prepared.worker("a") is None
    world.ends("a")
    assert world.held == [0, 0, 0]


async def test_a_cancelled_claim_gives_its_worker_back(world: World):
    world.prepares("w")
    await world.runs("busy", DeviceNeed(size=50, index=0), busy=True)
    claim = world.wants("a", DeviceNeed(size=60, index=0, takes_prepared=True))
    await settle()
    # Granted and cancelled at the same time.
    world.ends("busy")
    assert world.held == [10, 60, 0]
    claim.cancel()
    await settle()
    assert world.held == [MAIN, CONTEXT, 0]


class Crowd(test_device_memory.Crowd, World):
    """Replicas and workers that start, give way and are replaced as the example says."""

    async def do(self, at: int, step: tuple) -> None:
        match step:
            case "prepare", index:
                self.prepares(f"w{at}", index)
                await self.settle()
            case "die", number:
                workers = sorted(name for name, each in self.replicas.items() if each.is_prepared)
                if workers:
                    self.ends(workers[number % len(workers)])
                await self.settle()
            case "ask", main, wanted, account:
                if wanted and wanted.count == 1 and wanted.share is None:
                    wanted = replace(wanted, takes_prepared=at % 2 == 0)
                await super().do(at, ("ask", main, wanted, account))
            case _:
                await super().do(at, step)

    def look(self) -> None:
        for name, (task, *_) in list(self.asked.items()):
            if task.done() and not task.cancelled() and not task.exception():
                worker = self.starts_in_worker(name)
                assert worker is None or all(not book.has(worker) for book in self.books)
        super().look()
        for name, candidate in self.replicas.items():
            assert not (candidate.is_prepared and name in self.at_work)


steps = st.one_of(
    test_device_memory.steps,
    test_device_memory.steps,
    st.tuples(st.just("prepare"), st.integers(0, 1)),
    st.tuples(st.just("die"), st.integers(0, 20)),
)


@settings(max_examples=examples(200), deadline=None, derandomize=ALWAYS_THE_SAME)
@given(st.lists(steps, max_size=60))
def test_whatever_is_prepared_budgets_are_kept_and_all_are_served(example: list[tuple]) -> None:
    async def tried() -> None:
        crowd = Crowd()
        for at, step in enumerate(example):
            await crowd.do(at, step)
        for _ in range(4 * len(example) + 10):
            if not crowd.asked:
                break
            crowd.now += max(1, PATIENCE_S / 3)
            crowd.memory.settle()
            await crowd.settle()
            crowd.at_work.clear()
            await crowd.settle()
        assert not crowd.asked, crowd.memory.waiting()
        for name in [*crowd.replicas]:
            crowd.ends(name)
        assert crowd.held == [0, 0, 0]

    asyncio.run(tried())
