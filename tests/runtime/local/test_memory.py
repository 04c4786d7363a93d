"""Who gets memory and who gives way, with a clock and replicas that the test holds in its hands."""

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from stoker.errors import CapacityError
from stoker.runtime.local.memory import PATIENCE_S, Candidate, Memory
from stoker.runtime.pool.amounts import in_words

GIB = 1 << 30


class World:
    """Replicas hold memory, work or do nothing, and end when the test says so."""

    def __init__(self, total: int = 100) -> None:
        self.now = 0.0
        self.replicas: dict[str, Candidate] = {}
        self.at_work: set[str] = set()
        self.evicted: list[str] = []
        self.memory = Memory(total, self, lambda: self.now)

    def idle(self) -> Iterable[Candidate]:
        return [one for one in self._staying() if one.replica_id not in self.at_work]

    def working(self) -> Iterable[Candidate]:
        return [one for one in self._staying() if one.replica_id in self.at_work]

    def _staying(self) -> list[Candidate]:
        return [one for one in self.replicas.values() if one.replica_id not in self.evicted]

    def evict(self, replica_id: str) -> None:
        assert replica_id not in self.evicted
        self.evicted.append(replica_id)

    async def load(self, name: str, need: int, *, warm: bool = False, busy: bool = False) -> None:
        await asyncio.wait_for(self.memory.claim(name, f"dep-{name}", need), 1)
        self.replicas[name] = Candidate(name, warm, self.now)
        if busy:
            self.at_work.add(name)

    def ask(self, name: str, need: int) -> "asyncio.Task[None]":
        return asyncio.create_task(self.memory.claim(name, f"dep-{name}", need))

    def ends(self, name: str) -> None:
        del self.replicas[name]
        self.memory.release(name)

    async def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.memory.settle()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


class TestEviction:
    async def test_least_recently_used_first(self, world: World):
        for name in ("a", "b", "c"):
            await world.load(name, 30)
            world.now += 1
        asked = world.ask("d", 30)
        await settle()
        assert world.evicted == ["a"]
        assert not asked.done(), "the memory is free once the process has ended"
        world.ends("a")
        await asked

    async def test_cold_before_warm(self, world: World):
        await world.load("warm", 40, warm=True)
        world.now += 1
        await world.load("cold", 40)
        world.ask("new", 50)
        await settle()
        assert world.evicted == ["cold"]

    async def test_warm_where_cold_ones_are_not_enough(self, world: World):
        await world.load("warm", 40, warm=True)
        await world.load("cold", 40)
        world.ask("new", 90)
        await settle()
        assert sorted(world.evicted) == ["cold", "warm"]

    async def test_no_more_than_needed(self, world: World):
        await world.load("small", 10)
        world.now += 1
        await world.load("large", 80)
        world.ask("new", 70)
        await settle()
        assert world.evicted == ["large"], "the small one would be in vain"

    async def test_never_of_one_that_works(self, world: World):
        await world.load("busy", 60, busy=True)
        asked = world.ask("new", 60)
        await world.pass_(PATIENCE_S - 0.1)
        assert world.evicted == []
        world.at_work.clear()
        await world.pass_(0)
        assert world.evicted == ["busy"]
        world.ends("busy")
        await asked

    async def test_idle_ones_stay_where_they_would_not_do(self, world: World):
        await world.load("busy", 60, busy=True)
        await world.load("idle", 20)
        world.ask("new", 90)
        await settle()
        assert world.evicted == []


class TestTurns:
    async def test_one_that_works_gives_way_in_the_end(self, world: World):
        await world.load("busy", 60, busy=True)
        world.ask("new", 60)
        await settle()
        await world.pass_(PATIENCE_S)
        assert world.evicted == ["busy"], "it finishes what it has and gets nothing more"

    async def test_two_that_exclude_each_other(self, world: World):
        first, second = world.ask("a", 80), world.ask("b", 80)
        await first
        world.replicas["a"] = Candidate("a", False, world.now)
        world.at_work.add("a")
        await world.pass_(PATIENCE_S)
        assert world.evicted == ["a"]
        assert not second.done()
        world.ends("a")
        await second

    async def test_the_small_may_pass_but_not_for_ever(self, world: World):
        await world.load("busy", 60, busy=True)
        world.ask("large", 90)
        await settle()
        await world.ask("small", 10)
        world.now += PATIENCE_S
        late = world.ask("late", 10)
        await settle()
        assert not late.done()

    async def test_one_who_leaves_takes_nothing(self, world: World):
        await world.load("busy", 60, busy=True)
        gone = world.ask("gone", 60)
        await settle()
        gone.cancel()
        await settle()
        world.at_work.clear()
        await world.pass_(10)
        assert world.evicted == []
        assert world.memory.held == 60


class TestHot:
    async def test_memory_is_kept_for_it(self, world: World):
        world.memory.reserve("dep-hot", 70)
        with pytest.raises(CapacityError, match="reserved for hot") as error:
            await world.memory.claim("a", "dep-a", 40)
        assert error.value.code == "insufficient_memory"
        await world.load("small", 30)
        await world.load("hot", 70)

    async def test_given_up_it_serves_others(self, world: World):
        world.memory.reserve("dep-hot", 70)
        world.memory.unreserve("dep-hot")
        await world.load("a", 90)

    async def test_that_needs_more_than_was_kept_counts_in_full(self, world: World):
        world.memory.reserve("dep-hot", 40)
        await world.load("hot", 40)
        world.memory.resize("hot", 60)
        assert world.memory.room("dep-other") == 40


class TestSpare:
    async def test_nobody_gives_way_for_it(self, world: World):
        await world.load("idle", 60)
        assert not world.memory.take("warm", "dep-warm", 60)
        assert world.evicted == []
        assert world.memory.take("warm", "dep-warm", 40)
        assert world.memory.held == 100

    async def test_those_who_wait_come_first(self, world: World):
        await world.load("busy", 60, busy=True)
        world.ask("large", 90)
        await settle()
        assert not world.memory.take("warm", "dep-warm", 10)


class TestGrowth:
    async def test_idle_ones_make_up_for_it(self, world: World):
        await world.load("idle", 30)
        await world.load("growing", 60, busy=True)
        world.memory.resize("growing", 90)
        assert world.evicted == ["idle"]


class TestNeverFits:
    async def test_told_at_once_with_the_numbers(self):
        world = World(total=2 * GIB)
        world.memory.reserve("dep-hot", GIB)
        with pytest.raises(CapacityError) as error:
            await world.memory.claim("a", "dep-a", 3 * GIB)
        assert "needs about 3.0 GiB" in error.value.message
        assert "may take 2.0 GiB, 1.0 GiB of it reserved" in error.value.message


async def test_whatever_happens_the_budget_is_kept_and_all_are_served():
    rng = Random(4)
    world = World(total=1000)
    waiting: dict[str, asyncio.Task[None]] = {}
    for at in range(600):
        name = f"r{at}"
        waiting[name] = world.ask(name, rng.randint(1, 900))
        await world.pass_(rng.random())
        for one in [one for one, task in waiting.items() if task.done()]:
            waiting.pop(one)
            world.replicas[one] = Candidate(one, rng.random() < 0.3, world.now)
            world.at_work.add(one)
        for one in rng.sample(sorted(world.at_work), min(2, len(world.at_work))):
            world.at_work.discard(one)
        for one in [one for one in world.evicted if one in world.replicas]:
            if one not in world.at_work:
                world.ends(one)
        assert world.memory.held <= 1000
    for _ in range(2000):
        world.at_work.clear()
        for one in [one for one in world.evicted if one in world.replicas]:
            world.ends(one)
        await world.pass_(1)
        for one in [one for one, task in waiting.items() if task.done()]:
            waiting.pop(one)
            world.replicas[one] = Candidate(one, False, world.now)
        assert world.memory.held <= 1000
        if not waiting:
            break
    assert not waiting


def test_sizes_in_words():
    assert [in_words(size) for size in (5 << 20, 1 << 30, 3 * GIB // 2)] == [
        "5 MiB",
        "1.0 GiB",
        "1.5 GiB",
    ]
