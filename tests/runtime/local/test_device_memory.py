"""Tests of claims on graphics devices' memory, with two devices that exist only in a table."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.base.errors import CapacityError
from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.devices import Device, DeviceNeed
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.waiting import PATIENCE_S
from tests.runtime.local import test_memory
from tests.runtime.local.test_memory import settle
from tests.support.examples import ALWAYS_THE_SAME, examples
from tests.support.graphics import device

GIB = 1 << 30
ANY = DeviceNeed(size=60)


class World(test_memory.World):
    """Replicas on a machine with two devices of 100 bytes."""

    def __init__(
        self, total: int = 1000, hot_share: float = 0.8, devices: Sequence[Device] = ()
    ) -> None:
        super().__init__(total, hot_share)
        self.devices = devices or (device(0, 100), device(1, 100))
        self.memory = MemoryAllocator(
            total, self, lambda: self.now, hot_share=hot_share, devices=self.devices
        )
        self.books: list[Budget] = [self.memory.main, *self.memory.devices]

    @property
    def held(self) -> list[int]:
        return [book.held for book in self.books]

    def on(self, name: str) -> list[int]:
        return [book.index for book, _ in self.memory.devices_of(name)]

    def wants(
        self, name: str, wanted: DeviceNeed = ANY, account: str = "", *, main: int = 10
    ) -> "asyncio.Task[None]":
        need = Need(f"dep-{name}", main, account)
        return asyncio.create_task(self.memory.claim(name, need, wanted))

    async def runs(
        self,
        name: str,
        wanted: DeviceNeed = ANY,
        account: str = "",
        *,
        main: int = 10,
        warm: bool = False,
        busy: bool = False,
        hot: bool = False,
    ) -> None:
        if hot:
            self.memory.reserve(Need(f"dep-{name}", main, account), wanted)
        await asyncio.wait_for(self.wants(name, wanted, account, main=main), 1)
        self.loaded(name, warm=warm, hot=hot)
        if busy:
            self.at_work.add(name)


@pytest.fixture
async def world() -> World:
    return World()


class TestClaim:
    async def test_has_memory_and_a_device(self, world: World):
        await world.runs("a")
        assert (world.on("a"), world.held) == ([0], [10, 60, 0])
        await world.runs("b", DeviceNeed(size=30))
        assert (world.on("b"), world.held) == ([1], [20, 60, 30]), "where most is free"
        world.ends("a")
        assert world.held == [10, 0, 30]

    async def test_the_device_that_it_names(self, world: World):
        await world.runs("a", DeviceNeed(size=50))
        await world.runs("b", DeviceNeed(size=50, index=0))
        assert (world.on("b"), world.held) == ([0], [20, 100, 0])

    async def test_what_runs_on_the_cpu_has_none(self, world: World):
        await world.load("a", 30)
        assert (world.on("a"), world.held) == ([], [30, 0, 0])

    async def test_a_share_of_whatever_device_it_gets(self):
        world = World(devices=(device(0, 1000), device(1, 400)))
        await world.runs("a", DeviceNeed(share=0.9))
        await world.runs("b", DeviceNeed(share=0.9))
        assert world.memory.devices_of("a") == [(world.devices[0], 900)]
        assert world.memory.devices_of("b") == [(world.devices[1], 360)]

    async def test_a_machine_without_devices_counts_none(self):
        world = test_memory.World()
        await world.memory.claim("a", Need("dep-a", 10), ANY)
        assert world.memory.devices_of("a") == [] and world.memory.main.held == 10

    async def test_spare_ones_wait_for_no_device(self, world: World):
        await world.runs("a", DeviceNeed(size=80, index=0))
        assert world.memory.take("b", Need("dep-b", 10), ANY)
        assert world.on("b") == [1]
        assert not world.memory.has_room(Need("dep-c", 10), ANY)
        assert not world.memory.take("c", Need("dep-c", 10), ANY)
        assert world.memory.take("d", Need("dep-d", 10), DeviceNeed(size=40))
        assert world.evicted == []


class TestEviction:
    async def test_of_the_device_that_needs_least(self, world: World):
        await world.runs("a1", DeviceNeed(size=40, index=0))
        await world.runs("a2", DeviceNeed(size=40, index=0))
        await world.runs("b", DeviceNeed(size=90, index=1))
        world.now += 1
        claim = world.wants("new")
        await settle()
        assert world.evicted == ["a1"], "40 there, and on the other one 90"
        world.ends("a1")
        await claim
        assert world.on("new") == [0]

    async def test_least_recently_used_first_and_of_one_device_alone(self, world: World):
        for name, index in (("a1", 0), ("b1", 1), ("a2", 0), ("b2", 1)):
            await world.runs(name, DeviceNeed(size=45, index=index))
            world.now += 1
        world.wants("new", DeviceNeed(size=90))
        await settle()
        assert sorted(world.evicted) == ["a1", "a2"]

    async def test_a_device_that_is_emptied_already_is_waited_for(self, world: World):
        await world.runs("a", DeviceNeed(size=90, index=0))
        await world.runs("b", DeviceNeed(size=80, index=1))
        world.memory.ending("a")
        world.wants("new")
        await settle()
        assert world.evicted == []

    async def test_what_goes_from_a_device_makes_room_in_memory_too(self):
        world = World(total=100)
        await world.load("cpu", 50)
        await world.runs("a", DeviceNeed(size=90, index=0), main=40)
        await world.runs("b", DeviceNeed(size=90, index=1), main=10, busy=True)
        world.now += 1
        world.wants("new", main=40)
        await settle()
        assert world.evicted == ["a"]

    async def test_nobody_goes_from_a_device_where_memory_lacks_all_the_same(self):
        world = World(total=100)
        await world.load("cpu", 80, busy=True)
        await world.runs("a", DeviceNeed(size=90, index=0), main=10)
        world.wants("new", DeviceNeed(size=60, index=0), main=40)
        await settle()
        assert world.evicted == []

    async def test_none_that_holds_nothing_of_the_device(self, world: World):
        await world.load("cpu", 500)
        await world.runs("a", DeviceNeed(size=90, index=0), busy=True)
        world.wants("new", DeviceNeed(size=60, index=0))
        await settle()
        assert world.evicted == []
        world.at_work.clear()
        await world.pass_(0)
        assert world.evicted == ["a"]


class TestWaiting:
    async def test_those_that_work_take_turns(self, world: World):
        await world.runs("a", DeviceNeed(size=90), busy=True)
        await world.runs("b", DeviceNeed(size=80), busy=True)
        claim = world.wants("new")
        await settle()
        await world.pass_(PATIENCE_S - 0.1)
        assert world.evicted == []
        await world.pass_(0.1)
        assert world.evicted == ["b"], "the smaller of the two"
        world.at_work.clear()
        world.ends("b")
        await claim
        assert world.on("new") == [1]

    async def test_who_waits_holds_nothing(self, world: World):
        await world.runs("a", DeviceNeed(size=90, index=0), busy=True)
        await world.runs("b", DeviceNeed(size=90, index=1), busy=True)
        world.wants("new", main=500)
        await settle()
        assert world.held == [20, 90, 90]

    async def test_for_a_device_keeps_memory_from_nobodys_turn(self):
        world = World(total=100)
        await world.runs("busy", DeviceNeed(size=90, index=0), main=10, busy=True)
        claim = world.wants("gpu", DeviceNeed(size=60, index=0), main=30)
        await settle()
        await world.pass_(PATIENCE_S)
        await world.load("small", 50)
        world.now += 1
        # The replica fits, but it would make the other one wait again once that has its device.
        large = world.ask("large", 40)
        await settle()
        assert not large.done()
        assert world.evicted == ["busy", "small"], "but it has its own turn, and is made room for"
        world.ends("small")
        await large
        world.loaded("large")
        world.at_work.clear()
        world.ends("busy")
        await claim
        assert world.held == [70, 60, 0]

    async def test_behind_it_the_small_may_not_pass_for_ever(self):
        world = World(total=100)
        await world.runs("busy", DeviceNeed(size=90, index=0), main=10, busy=True)
        await world.load("cpu", 50, busy=True)
        world.wants("gpu", DeviceNeed(size=60, index=0), main=10)
        large = world.ask("large", 60)
        await settle()
        await world.pass_(PATIENCE_S)
        small = world.ask("small", 20)
        await settle()
        assert not small.done(), "it would take what the large one waits for"
        world.at_work.discard("cpu")
        world.ends("cpu")
        await large
        await small

    async def test_the_small_may_pass_but_not_for_ever(self, world: World):
        for index in (0, 1):
            await world.runs(f"busy{index}", DeviceNeed(size=60, index=index), busy=True)
        large = world.wants("large", DeviceNeed(size=90))
        await settle()
        await world.runs("small", DeviceNeed(size=10))
        world.now += PATIENCE_S
        late = [world.wants(f"late{at}", DeviceNeed(size=30)) for at in range(3)]
        await settle()
        assert [task.done() for task in late] == [True, False, False], "on the other device alone"
        assert (world.on("late0"), world.evicted) == ([0], ["busy1"])
        world.at_work.discard("busy1")
        world.ends("busy1")
        await large
        assert world.on("large") == [1]

    async def test_accounts_take_turns_by_what_they_hold_most_of(self, world: World):
        """Turns depend on the resource that an account holds most of. A's share of the devices is
        larger than B's share of the memory.
        """
        await world.runs("a", DeviceNeed(size=70, index=0), "A", main=10, busy=True)
        await world.load("b", 330, "B", busy=True)
        await world.runs("c", DeviceNeed(size=90, index=1), "C", main=10, busy=True)
        more = world.wants("a2", DeviceNeed(size=90, index=1), "A")
        theirs = world.wants("b2", DeviceNeed(size=90, index=1), "B")
        await settle()
        world.ends("c")
        await settle()
        assert (more.done(), theirs.done()) == (False, True)

    async def test_says_what_lacks(self):
        world = World(total=10 * GIB, devices=(device(0, 8 * GIB), device(1, 8 * GIB)))
        await world.runs("a", DeviceNeed(size=7 * GIB), main=GIB, busy=True)
        await world.runs("b", DeviceNeed(size=6 * GIB), main=GIB, busy=True)
        world.wants("new", DeviceNeed(size=3 * GIB), main=2 * GIB)
        await settle()
        assert world.memory.waiting() == [
            (
                "dep-new",
                2 * GIB,
                "The model needs about 3.0 GiB of the memory of GPU 1, but only 2.0 GiB of 8.0 GiB "
                "is free. Busy models hold the rest.",
            )
        ]


class TestMeasured:
    async def test_less_lets_others_in(self, world: World):
        await world.runs("a", DeviceNeed(size=90, index=0), busy=True)
        claim = world.wants("b", DeviceNeed(size=60, index=0))
        await settle()
        world.memory.resize_devices("a", 40)
        await claim
        assert world.held == [20, 100, 0]

    async def test_more_has_idle_ones_go(self, world: World):
        await world.runs("idle", DeviceNeed(size=40, index=0))
        await world.runs("elsewhere", DeviceNeed(size=40, index=1))
        await world.runs("a", DeviceNeed(size=60, index=0), busy=True)
        world.memory.resize_devices("a", 80)
        assert world.evicted == ["idle"]
        assert world.held == [30, 120, 40], "until the idle one has ended"


class TestSeveral:
    """A replica that is spread over two devices."""

    async def test_has_both_or_none(self, world: World):
        await world.runs("busy", DeviceNeed(size=50, index=0), busy=True)
        claim = world.wants("wide", DeviceNeed(size=60, count=2))
        await settle()
        assert world.held == [10, 50, 0] and not claim.done()
        world.at_work.clear()
        world.ends("busy")
        await claim
        assert (world.on("wide"), world.held) == ([0, 1], [10, 60, 60])
        world.memory.resize_devices("wide", 70)
        assert world.held == [10, 70, 70]
        world.memory.release("wide")
        assert world.held == [0, 0, 0]

    async def test_has_both_emptied(self, world: World):
        await world.runs("a", DeviceNeed(size=60, index=0))
        await world.runs("b", DeviceNeed(size=60, index=1))
        world.wants("wide", DeviceNeed(size=60, count=2))
        await settle()
        assert sorted(world.evicted) == ["a", "b"]

    async def test_goes_as_one(self, world: World):
        await world.runs("wide", DeviceNeed(size=60, count=2))
        claim = world.wants("new")
        await settle()
        assert world.evicted == ["wide"]
        world.ends("wide")
        await claim

    async def test_the_two_that_need_least_of_three(self):
        world = World(devices=tuple(device(index, 100) for index in range(3)))
        for index, size in enumerate((60, 90, 70)):
            await world.runs(f"on{index}", DeviceNeed(size=size, index=index))
        world.wants("wide", DeviceNeed(size=50, count=2))
        await settle()
        assert sorted(world.evicted) == ["on0", "on2"]

    async def test_more_than_there_are(self, world: World):
        with pytest.raises(
            CapacityError,
            match=r"requires 3 GPUs, but this machine has GPU 0, 1\. Set 'devices' to 2\.",
        ):
            await world.wants("wide", DeviceNeed(size=10, count=3))

    async def test_mig_instances_are_not_combined(self):
        parts = [replace(device(index, 100), uuid=f"MIG-{index}") for index in (1, 2)]
        world = World(devices=(device(0, 100), *parts))
        with pytest.raises(CapacityError, match=r"MIG instances\. Set 'devices' to 1\."):
            await world.wants("wide", DeviceNeed(size=10, count=2))


class TestNeverFits:
    async def test_told_at_once_with_the_numbers(self):
        world = World(total=100 * GIB, devices=(device(0, 8 * GIB), device(1, 16 * GIB)))
        with pytest.raises(CapacityError) as error:
            await world.wants("a", DeviceNeed(size=20 * GIB), main=GIB)
        assert error.value.code == "insufficient_memory"
        assert error.value.message == (
            "The model needs about 20.0 GiB of the memory of GPU 1 and cannot fit: all models "
            "together may take 16.0 GiB."
        )
        with pytest.raises(CapacityError, match="GPU 0 and cannot fit"):
            await world.wants("a", DeviceNeed(size=9 * GIB, index=0), main=GIB)
        assert not world.memory.has_room(Need("dep-a", GIB), DeviceNeed(size=20 * GIB))

    async def test_one_that_is_not_there(self, world: World):
        with pytest.raises(CapacityError, match="requires GPU 7, but this machine has GPU 0, 1"):
            await world.wants("a", DeviceNeed(size=10, index=7))

    async def test_on_the_cpu_where_that_will_do(self, world: World):
        await world.runs("a", DeviceNeed(size=101, is_optional=True))
        assert (world.on("a"), world.held) == ([], [10, 0, 0])


class TestHot:
    async def test_a_device_is_kept_for_it(self, world: World):
        world.memory.reserve(Need("dep-hot", 10, "A"), DeviceNeed(size=70))
        assert [book.reserved for book in world.books] == [10, 70, 0]
        await world.runs("a", DeviceNeed(size=90), "A")
        assert world.on("a") == [1]
        with pytest.raises(CapacityError, match=r"GPU 0 and cannot fit.* reserved for hot"):
            await world.wants("b", DeviceNeed(size=40, index=0), "A")
        await world.runs("hot", DeviceNeed(size=70), "A")
        assert world.on("hot") == [0]

    async def test_one_for_each_replica(self, world: World):
        world.memory.reserve(Need("dep-hot", 20), DeviceNeed(size=70), replicas=2)
        assert [book.reserved for book in world.books] == [20, 70, 70]
        # After a new measurement it stays on its device.
        await world.runs("a", DeviceNeed(size=20, index=0))
        world.memory.reserve(Need("dep-hot", 20), DeviceNeed(size=60), replicas=2)
        assert [book.reserved for book in world.books] == [20, 60, 60]
        world.memory.unreserve("dep-hot")
        assert [book.reserved for book in world.books] == [0, 0, 0]

    async def test_its_replicas_go_where_it_is_kept(self, world: World):
        world.memory.reserve(Need("dep-hot", 20), DeviceNeed(size=30), replicas=2)
        assert [book.reserved for book in world.books] == [20, 30, 30]
        for name in ("one", "two"):
            await world.memory.claim(name, Need("dep-hot", 10), DeviceNeed(size=30))
        assert (world.on("one"), world.on("two")) == ([0], [1])

    async def test_is_refused_where_no_device_can_be_kept(self, world: World):
        world.memory.reserve(Need("dep-one", 10, "A"), DeviceNeed(size=70))
        world.memory.check_hot(Need("dep-two", 10, "A"), DeviceNeed(size=70), is_alone=True)
        world.memory.reserve(Need("dep-two", 10, "A"), DeviceNeed(size=70))
        with pytest.raises(CapacityError, match=r"of GPU . and cannot fit"):
            world.memory.check_hot(Need("dep-three", 10, "A"), DeviceNeed(size=70), is_alone=True)

    async def test_beside_others_an_account_keeps_its_share_of_a_device(self, world: World):
        need = Need("dep-one", 10, "A")
        world.memory.check_hot(need, DeviceNeed(size=80), is_alone=False)
        with pytest.raises(CapacityError, match="which cannot be reserved for it"):
            world.memory.check_hot(need, DeviceNeed(size=81), is_alone=False)
        world.memory.check_hot(need, DeviceNeed(size=100), is_alone=True)

    async def test_idle_ones_stay(self, world: World):
        for index in (0, 1):
            await world.runs(f"hot{index}", DeviceNeed(size=70, index=index), "A", hot=True)
        world.wants("new", DeviceNeed(size=60, is_optional=True), "A")
        await world.pass_(PATIENCE_S)
        assert world.on("new") == [] and world.evicted == [], "it runs on the CPU"


class TestGone:
    """A device that disappears."""

    async def test_nothing_is_given_out_of_it(self, world: World):
        assert world.memory.found([world.devices[1]])
        assert not world.memory.found([world.devices[1]])
        await world.runs("a")
        assert world.on("a") == [1]
        with pytest.raises(CapacityError, match="requires GPU 0, but this machine has GPU 1"):
            await world.wants("b", DeviceNeed(size=10, index=0))
        assert world.memory.found(world.devices)
        await world.runs("b")
        assert world.on("b") == [0]

    async def test_what_idles_on_it_goes(self, world: World):
        await world.runs("idle", DeviceNeed(size=30, index=0))
        await world.runs("busy", DeviceNeed(size=30, index=0), busy=True)
        world.memory.found([world.devices[1]])
        assert world.evicted == ["idle"]
        world.ends("idle")
        world.ends("busy")
        assert world.held == [0, 0, 0]

    async def test_who_waits_for_it_is_refused_or_goes_elsewhere(self, world: World):
        for index in (0, 1):
            await world.runs(f"busy{index}", DeviceNeed(size=90, index=index), busy=True)
        refused = world.wants("a", DeviceNeed(size=60, index=0))
        waits = world.wants("b")
        on_cpu = world.wants("c", DeviceNeed(size=60, index=0, is_optional=True))
        await settle()
        world.memory.found([world.devices[1]])
        with pytest.raises(CapacityError, match="requires GPU 0"):
            await refused
        await on_cpu
        assert world.on("c") == []
        world.at_work.clear()
        world.ends("busy1")
        await waits
        assert world.on("b") == [1]

    async def test_all_of_them(self, world: World):
        world.memory.found([device(9, 100)])
        with pytest.raises(CapacityError, match="requires a GPU, but this machine has none now"):
            await world.wants("a")


sizes = st.integers(1, 100)
wanted = st.builds(
    DeviceNeed,
    size=sizes,
    count=st.sampled_from([1, 1, 1, 2]),
    index=st.sampled_from([None, None, None, 0, 1]),
    is_optional=st.booleans(),
) | st.builds(DeviceNeed, share=st.sampled_from([0.3, 0.5, 0.9]))
asks = st.tuples(st.just("ask"), st.integers(1, 90), st.none() | wanted, st.sampled_from("ABC"))
steps = st.one_of(
    asks,
    asks,
    st.tuples(st.just("rest"), st.integers(0, 20)),
    st.tuples(st.just("shrink"), st.integers(0, 20), sizes),
    st.tuples(st.just("leave"), st.integers(0, 20)),
    st.tuples(st.just("pass"), st.floats(0.1, 5)),
)


class Crowd(World):
    """Replicas that start, work and end as the example says."""

    def __init__(self, total: int = 100) -> None:
        super().__init__(total)
        self.asked: dict[str, tuple[asyncio.Task[None], int, DeviceNeed | None]] = {}

    def look(self) -> None:
        """Lets replicas with all their memory start work. Ends evicted replicas that are done."""
        for name, (task, main, claim) in list(self.asked.items()):
            if not task.done():
                assert all(not book.has(name) for book in self.books), "who waits holds nothing"
                continue
            del self.asked[name]
            if task.cancelled() or task.exception():
                assert all(not book.has(name) for book in self.books)
                continue
            assert self.memory.main.size(name) == main
            on = self.on(name)
            if claim and not claim.is_optional:
                assert len(on) == claim.count
            if claim and on:
                assert claim.index is None or on == [claim.index]
            self.replicas[name] = EvictionCandidate(name, False, self.now)
            self.at_work.add(name)
        for name in [candidate for candidate in self.evicted if candidate in self.replicas]:
            if name not in self.at_work:
                self.ends(name)
        for book in self.books:
            assert book.held <= book.total

    async def settle(self) -> None:
        for _ in range(3):
            await settle()
            self.look()

    async def do(self, at: int, step: tuple) -> None:
        match step:
            case "ask", main, wanted, account:
                name = f"r{at}"
                need = Need(f"dep-{name}", main, account)
                task = asyncio.create_task(self.memory.claim(name, need, wanted))
                self.asked[name] = task, main, wanted
            case "rest", number if self.at_work:
                self.at_work.discard(sorted(self.at_work)[number % len(self.at_work)])
            case "shrink", number, size if self.replicas:
                name = sorted(self.replicas)[number % len(self.replicas)]
                sizes = [book.size(name) for book in self.memory.devices if book.has(name)]
                self.memory.resize_devices(name, min([size, *sizes]))
            case "leave", number if self.asked:
                task, _, _ = self.asked[sorted(self.asked)[number % len(self.asked)]]
                task.cancel()
            case "pass", seconds:
                self.now += seconds
                self.memory.settle()
        await self.settle()


@settings(max_examples=examples(200), deadline=None, derandomize=ALWAYS_THE_SAME)
@given(st.lists(steps, max_size=60))
def test_whatever_happens_budgets_are_kept_and_all_are_served(example: list[tuple]) -> None:
    async def tried() -> None:
        crowd = Crowd()
        for at, step in enumerate(example):
            await crowd.do(at, step)
        # From here on calls end after a while, and no new ones arrive.
        for _ in range(4 * len(example) + 10):
            if not crowd.asked:
                break
            crowd.now += 1
            crowd.memory.settle()
            await crowd.settle()
            crowd.at_work.clear()
            await crowd.settle()
        assert not crowd.asked, crowd.memory.waiting()

    asyncio.run(tried())
