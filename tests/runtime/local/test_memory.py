"""Tests of memory claims and evictions, with a clock and replicas that the test controls."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from stoker.base.errors import CapacityError
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.evictions import LENT_IDLE_S
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.waiting import PATIENCE_S

GIB = 1 << 30


class World:
    """Replicas that hold memory, work, idle and end as the test says."""

    def __init__(self, total: int = 100, hot_share: float = 0.8) -> None:
        self.now = 0.0
        self.replicas: dict[str, EvictionCandidate] = {}
        self.at_work: set[str] = set()
        self.evicted: list[str] = []
        self.memory = MemoryAllocator(total, self, lambda: self.now, hot_share=hot_share)

    def idle(self) -> Iterable[EvictionCandidate]:
        return [
            candidate for candidate in self._staying() if candidate.replica_id not in self.at_work
        ]

    def working(self) -> Iterable[EvictionCandidate]:
        return [candidate for candidate in self._staying() if candidate.replica_id in self.at_work]

    def _staying(self) -> list[EvictionCandidate]:
        return [
            candidate
            for candidate in self.replicas.values()
            if candidate.replica_id not in self.evicted
        ]

    def evict(self, replica_id: str) -> None:
        assert replica_id not in self.evicted
        self.evicted.append(replica_id)

    def put_to_sleep(self, replica_id: str) -> None:
        raise AssertionError("no replica has GPU memory")

    async def load(
        self,
        name: str,
        need: int,
        account: str = "",
        *,
        warm: bool = False,
        busy: bool = False,
        hot: bool = False,
    ) -> None:
        if hot:
            self.memory.reserve(Need(f"dep-{name}", need, account))
        await asyncio.wait_for(self.ask(name, need, account), 1)
        self.loaded(name, warm=warm, hot=hot)
        if busy:
            self.at_work.add(name)

    def loaded(self, name: str, *, warm: bool = False, hot: bool = False) -> None:
        self.replicas[name] = EvictionCandidate(name, warm, self.now, is_hot=hot)

    def ask(self, name: str, need: int, account: str = "") -> "asyncio.Task[None]":
        return asyncio.create_task(self.memory.claim(name, Need(f"dep-{name}", need, account)))

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
        claim = world.ask("d", 30)
        await settle()
        assert world.evicted == ["a"]
        assert not claim.done(), "the memory is free once the process has ended"
        world.ends("a")
        await claim

    async def test_least_often_called_first(self, world: World):
        for name, call_rate in (("often", 2.0), ("seldom", 0.1)):
            await world.load(name, 40)
            world.replicas[name] = replace(world.replicas[name], call_rate=call_rate)
            world.now += 1
        world.ask("new", 40)
        await settle()
        assert world.evicted == ["seldom"], "it was used last"

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
        claim = world.ask("new", 60)
        await world.pass_(PATIENCE_S - 0.1)
        assert world.evicted == []
        world.at_work.clear()
        await world.pass_(0)
        assert world.evicted == ["busy"]
        world.ends("busy")
        await claim

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
        world.replicas["a"] = EvictionCandidate("a", False, world.now)
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
        assert world.memory.main.held == 60


class TestHot:
    async def test_memory_is_kept_for_it(self, world: World):
        world.memory.reserve(Need("dep-hot", 70))
        with pytest.raises(CapacityError, match="reserved for hot") as error:
            await world.memory.claim("a", Need("dep-a", 40))
        assert error.value.code == "insufficient_memory"
        await world.load("small", 30)
        await world.load("hot", 70)

    async def test_given_up_it_serves_others(self, world: World):
        world.memory.reserve(Need("dep-hot", 70))
        world.memory.unreserve("dep-hot")
        await world.load("a", 90)

    async def test_that_needs_more_than_was_kept_counts_in_full(self, world: World):
        world.memory.reserve(Need("dep-hot", 40))
        await world.load("hot", 40)
        world.memory.resize("hot", 60)
        assert world.memory.main.room("dep-other") == 40


class TestSpare:
    async def test_nobody_gives_way_for_it(self, world: World):
        await world.load("idle", 60)
        assert not world.memory.take("warm", Need("dep-warm", 60))
        assert world.evicted == []
        assert world.memory.take("warm", Need("dep-warm", 40))
        assert world.memory.main.held == 100

    async def test_those_who_wait_come_first(self, world: World):
        await world.load("busy", 60, busy=True)
        world.ask("large", 90)
        await settle()
        assert not world.memory.take("warm", Need("dep-warm", 10))


class TestGrowth:
    async def test_idle_ones_make_up_for_it(self, world: World):
        await world.load("idle", 30)
        await world.load("growing", 60, busy=True)
        world.memory.resize("growing", 90)
        assert world.evicted == ["idle"]


class TestNeverFits:
    async def test_told_at_once_with_the_numbers(self):
        world = World(total=2 * GIB)
        world.memory.reserve(Need("dep-hot", GIB))
        with pytest.raises(CapacityError) as error:
            await world.memory.claim("a", Need("dep-a", 3 * GIB))
        assert "needs about 3.0 GiB" in error.value.message
        assert "may take 2.0 GiB, 1.0 GiB of it reserved" in error.value.message


class TestM1:
    """Memory is shared fairly among accounts."""

    async def test_what_is_borrowed_is_given_back_first(self, world: World):
        await world.load("b", 20, "B")
        world.now += 1
        await world.load("a1", 40, "A", warm=True)
        await world.load("a2", 40, "A", warm=True)
        world.ask("c", 30, "C")
        await settle()
        assert world.evicted == ["a1"], "though it is warm and was used after that of B"

    async def test_accounts_take_turns(self, world: World):
        await world.load("busy", 90, "C", busy=True)
        flood = [world.ask(f"a{at}", 30, "A") for at in range(20)]
        first = world.ask("b", 30, "B")
        await settle()
        world.ends("busy")
        await settle()
        assert first.done()
        assert [task.done() for task in flood[:3]] == [True, True, False]

    async def test_the_next_turn_is_of_the_account_that_holds_least(self, world: World):
        await world.load("a0", 60, "A", busy=True)
        await world.load("b0", 40, "B", busy=True)
        flood = [world.ask(f"a{at + 1}", 20, "A") for at in range(3)]
        first = world.ask("b1", 20, "B")
        await settle()
        world.ends("b0")
        await settle()
        assert first.done()
        assert [task.done() for task in flood] == [True, False, False]

    async def test_alone_it_may_keep_all_hot(self, world: World):
        world.memory.check_hot(Need("dep-a", 100, "A"), is_alone=True)
        await world.load("a", 100, "A", hot=True)

    async def test_beside_others_it_keeps_its_share(self):
        world = World(total=10 * GIB)
        world.memory.reserve(Need("dep-a0", 5 * GIB, "A"))
        world.memory.check_hot(Need("dep-a1", 3 * GIB, "A"), is_alone=False)
        with pytest.raises(CapacityError) as error:
            world.memory.check_hot(Need("dep-a1", 4 * GIB, "A"), is_alone=False)
        assert error.value.code == "insufficient_memory"
        assert "needs about 4.0 GiB" in error.value.message
        assert "may reserve 8.0 GiB" in error.value.message
        assert "already reserves 5.0 GiB" in error.value.message
        world.memory.check_hot(Need("dep-b", 5 * GIB, "B"), is_alone=False)
        # The memory that it already keeps is not claimed again.
        world.memory.reserve(Need("dep-a1", 4 * GIB, "A"))
        world.memory.check_hot(Need("dep-a1", 4 * GIB, "A"), is_alone=False)

    async def test_what_is_lent_is_taken_back_for_another_account(self, world: World):
        for at in range(6):
            await world.load(f"a{at}", 16, "A", hot=True)
            world.now += 1
        claim = world.ask("b", 16, "B")
        await settle()
        assert world.evicted == ["a0"]
        world.ends("a0")
        await claim
        world.loaded("b")
        # The replica claims the memory again at once, but may not evict the one that has just
        # received it.
        again = world.ask("a0", 16, "A")
        await world.pass_(PATIENCE_S)
        assert world.evicted == ["a0"]
        # Its claim does not block others meanwhile.
        await world.load("tiny", 4, "B")
        await world.pass_(LENT_IDLE_S)
        assert "b" in world.evicted, "nobody uses it"
        world.ends("b")
        await settle()
        assert again.done()

    async def test_what_is_within_the_share_is_not(self, world: World):
        for at in range(5):
            await world.load(f"a{at}", 16, "A", hot=True)
        await world.load("b0", 20, "B", busy=True)
        world.ask("b1", 20, "B")
        await settle()
        await world.pass_(PATIENCE_S)
        assert world.evicted == ["b0"], "it takes turns with itself"

    async def test_what_is_lent_is_not_for_who_has_more_than_a_fair_share(self, world: World):
        await world.load("b0", 10, "B", busy=True)
        await world.load("a", 45, "A", hot=True)
        await world.load("a2", 45, "A", hot=True)
        greedy = world.ask("b1", 20, "C")
        await world.load("c0", 0, "C")
        world.ask("b2", 41, "B")
        await settle()
        assert world.evicted == ["a"], "for C; B would have 51"
        greedy.cancel()

    async def test_what_is_kept_and_not_loaded_is_lent_too(self, world: World):
        world.memory.reserve(Need("dep-a", 100, "A"))
        await world.load("b", 20, "B")
        with pytest.raises(CapacityError, match="reserved for hot"):
            await world.memory.claim("b2", Need("dep-b2", 21, "B"))

    async def test_whatever_happens_none_waits_for_ever(self):
        """No claim waits forever under a flood of one account, hot replicas of another and
        occasional claims of a third.
        """
        rng = Random(7)
        world = World(total=100)
        for at in range(4):
            await world.load(f"hot{at}", 24, "H", hot=True)
        waiting: dict[str, tuple[asyncio.Task[None], float]] = {}
        longest = 0.0
        for at in range(400):
            asks = [(f"a{at}", rng.randint(1, 20), "A"), (f"a{at}x", rng.randint(1, 20), "A")]
            if at % 10 == 0:
                asks.append((f"b{at}", rng.randint(1, 20), "B"))
            for name, need, account in asks:
                waiting[name] = world.ask(name, need, account), world.now
            await world.pass_(0.5)
            for name in [name for name, (task, _) in waiting.items() if task.done()]:
                _, since = waiting.pop(name)
                if name.startswith("b"):
                    longest = max(longest, world.now - since)
                world.loaded(name)
                world.at_work.add(name)
            for name in rng.sample(sorted(world.at_work), min(2, len(world.at_work))):
                world.at_work.discard(name)
            for name in [name for name in world.evicted if name in world.replicas]:
                if name not in world.at_work:
                    world.ends(name)
            assert world.memory.main.held <= 100
        assert sum(name.startswith("a") for name in waiting) > 50, "A asks for more than there is"
        assert longest < 20, "B has its turn all the same"
        for task, _ in waiting.values():
            task.cancel()


async def test_whatever_happens_the_budget_is_kept_and_all_are_served():
    rng = Random(4)
    world = World(total=1000)
    waiting: dict[str, asyncio.Task[None]] = {}
    for at in range(600):
        name = f"r{at}"
        waiting[name] = world.ask(name, rng.randint(1, 900))
        await world.pass_(rng.random())
        for replica_id in [replica_id for replica_id, task in waiting.items() if task.done()]:
            waiting.pop(replica_id)
            world.replicas[replica_id] = EvictionCandidate(
                replica_id, rng.random() < 0.3, world.now
            )
            world.at_work.add(replica_id)
        for replica_id in rng.sample(sorted(world.at_work), min(2, len(world.at_work))):
            world.at_work.discard(replica_id)
        for replica_id in [
            replica_id for replica_id in world.evicted if replica_id in world.replicas
        ]:
            if replica_id not in world.at_work:
                world.ends(replica_id)
        assert world.memory.main.held <= 1000
    for _ in range(2000):
        world.at_work.clear()
        for replica_id in [
            replica_id for replica_id in world.evicted if replica_id in world.replicas
        ]:
            world.ends(replica_id)
        await world.pass_(1)
        for replica_id in [replica_id for replica_id, task in waiting.items() if task.done()]:
            waiting.pop(replica_id)
            world.replicas[replica_id] = EvictionCandidate(replica_id, False, world.now)
        assert world.memory.main.held <= 1000
        if not waiting:
            break
    assert not waiting


def test_sizes_in_words():
    assert [in_words(size) for size in (5 << 20, 1 << 30, 3 * GIB // 2)] == [
        "5 MiB",
        "1.0 GiB",
        "1.5 GiB",
    ]
