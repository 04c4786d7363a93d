"""Preparation processes: order, errors, deaths and bounds, with items that say what to do."""

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.models.stages.base import InputError, Sample
from stoker.replica.counters import Counters
from stoker.replica.mean_time import FIRST_ITEMS
from stoker.replica.preparation import demand, process
from stoker.replica.preparation import pool as pools
from stoker.replica.preparation.demand import SLOW_S, PreparationDemand
from stoker.replica.preparation.parent import PreparationParent
from stoker.replica.preparation.permits import Permits
from stoker.replica.preparation.pool import (
    PreparationError,
    PreparationJob,
    PreparationPool,
    Prepared,
)
from tests.replica.preparation.support import TIMEOUT_S, Toy, forked, wait_until
from tests.replica.preparation.test_permits import Other

MOST = 3


class Pool:
    def __init__(self, parent: PreparationParent) -> None:
        self.parent = parent
        self.demand = PreparationDemand()
        for _ in range(FIRST_ITEMS):
            self.demand.took(5 * SLOW_S)
        self.is_hungry = True
        self.problems: list[str] = []
        self.order: list[Any] = []
        """Items in the order of their outcomes."""
        self.outcomes: dict[int, Prepared] = {}
        self.here: list[Any] = []
        """Items that the replica has to prepare."""
        self.done: set[int] = set()
        """Numbers of cancelled jobs."""
        self._arrived = threading.Condition()
        self.pool = PreparationPool(
            parent,
            self.demand,
            Counters(),
            is_hungry=lambda: self.is_hungry,
            loaded=self.problems.append,
        )
        self.pool.load(pickle.dumps(Toy(Path())))
        self._number = 0

    def put(self, what: str, argument: Any = None, party: str = "") -> int:
        self._number += 1
        number, item = self._number, (what, argument)

        def deliver(outcome: Prepared) -> None:
            with self._arrived:
                self.order.append(item)
                self.outcomes[number] = outcome
                self._arrived.notify_all()

        def prepare() -> list[Sample]:
            self.here.append(item)
            return Toy(Path()).preprocess(item, {})

        self.pool.put(
            PreparationJob(
                item,
                {},
                party,
                is_done=lambda: number in self.done,
                deliver=deliver,
                prepare=prepare,
            )
        )
        return number

    def outcome(self, number: int) -> list[Sample]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: number in self.outcomes, TIMEOUT_S)
        return self.outcomes[number]()

    @property
    def processes(self) -> list[int]:
        return self.pool.pids[1:]


@pytest.fixture
def make_pool() -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(permits: Permits | None = None) -> Pool:
        made.append(Pool(forked(MOST, permits)))
        return made[-1]

    yield make
    for pool in made:
        pool.pool.finish()
        psutil.Process(pool.parent.pid).wait(TIMEOUT_S)


@pytest.fixture
def pool(make_pool: Callable[..., Pool]) -> Pool:
    return make_pool()


def test_an_item_is_prepared_in_another_process(pool: Pool) -> None:
    (sample,) = pool.outcome(pool.put("sleep", 0.0))
    assert sample.extras["pid"] not in (os.getpid(), pool.parent.pid)
    assert [sample.extras["pid"]] == pool.processes
    assert sample.features["x"].tolist() == [[1.0, 1.0, 1.0]]
    assert pool.problems == [""]


def test_errors_are_those_of_the_stages(pool: Pool) -> None:
    with pytest.raises(InputError) as refusal:
        pool.outcome(pool.put("refuse", "The image is damaged."))
    error = refusal.value
    assert (error.message, error.field, error.of_item) == ("The image is damaged.", "inputs", True)
    assert error.code == "invalid_media"
    with pytest.raises(PreparationError, match="RuntimeError: a mistake"):
        pool.outcome(pool.put("fail", "a mistake"))
    assert len(pool.processes) == 1, "errors end no process"


def test_a_dead_process_is_replaced_and_its_item_repeated(pool: Pool) -> None:
    pool.outcome(pool.put("sleep", 0.0))
    number = pool.put("sleep", 0.3)
    following = pool.put("sleep", 0.01)
    (pid,) = pool.processes
    time.sleep(0.1)
    os.kill(pid, 9)
    (sample,) = pool.outcome(number)
    assert sample.extras["pid"] != pid
    assert pool.outcome(following)
    assert pid not in pool.processes


def test_an_item_that_ends_processes_fails_alone(pool: Pool) -> None:
    """The replica itself must not prepare it."""
    number = pool.put("die", os.getpid())
    others = [pool.put("sleep", 0.01) for _ in range(6)]
    with pytest.raises(PreparationError):
        pool.outcome(number)
    assert all(pool.outcome(other) for other in others)
    assert ("die", os.getpid()) not in pool.here


def test_an_item_that_hangs_fails_alone(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LONGEST_S", 0.3)
    pool = make_pool()
    number = pool.put("sleep", 60)
    others = [pool.put("sleep", 0.01) for _ in range(6)]
    with pytest.raises(PreparationError):
        pool.outcome(number)
    assert all(pool.outcome(other) for other in others)
    assert pool.here == []


def test_cancelled_items_are_dropped(pool: Pool) -> None:
    numbers = [pool.put("sleep", 0.05) for _ in range(40)]
    cancelled = numbers[20::2]
    pool.done.update(cancelled)
    for number in set(numbers) - set(cancelled):
        assert pool.outcome(number)
    wait_until(lambda: pool.pool.pending == 0)
    assert not set(cancelled) & pool.outcomes.keys()


def test_parties_take_turns(pool: Pool) -> None:
    pool.is_hungry = False
    pool.outcome(pool.put("sleep", 0.0))
    many = [pool.put("sleep", 0.02, "many") for _ in range(20)]
    late = pool.put("sleep", 0.021, "few")
    pool.outcome(late)
    assert len(pool.outcomes) < 10, "it waits for the turns of the other party, not for all"
    for number in many:
        pool.outcome(number)


def test_processes_are_bounded_and_end_without_use(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "WINDOW_S", 0.5)
    pool = make_pool()
    numbers = [pool.put("sleep", 0.05) for _ in range(40)]
    most = 0
    while len(pool.outcomes) < len(numbers):
        most = max(most, len(pool.processes))
        time.sleep(0.01)
    assert 1 < most <= MOST
    assert all(pool.outcome(number) for number in numbers)
    ids = pool.processes
    wait_until(lambda: not pool.processes)
    wait_until(lambda: not any(map(psutil.pid_exists, ids)))
    assert not pool.pool.is_open


def test_no_process_starts_while_the_engine_has_enough(pool: Pool) -> None:
    pool.is_hungry = False
    numbers = [pool.put("sleep", 0.01) for _ in range(30)]
    assert all(pool.outcome(number) for number in numbers)
    assert len(pool.processes) == 1


def test_the_replica_prepares_if_the_machine_has_no_process_left(
    make_pool: Callable[..., Pool],
) -> None:
    permits = Permits.create()
    permits.take = lambda most: None
    pool = make_pool(permits)
    (sample,) = pool.outcome(pool.put("sleep", 0.0))
    assert sample.extras["pid"] == os.getpid()
    assert pool.here == [("sleep", 0.0)]
    assert not pool.pool.may_open
    wait_until(lambda: pool.pool.may_open)


class Loud(Toy):
    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        os.write(2, b"preparing")
        return super().preprocess(item, parameters)


def test_output_goes_to_the_log_of_the_replica(pool: Pool, tmp_path: Path) -> None:
    wait_until(lambda: pool.problems == [""])
    with (tmp_path / "log").open("wb") as log:
        pool.parent.log_to(log.fileno())
    pool.pool.load(pickle.dumps(Loud(Path())))
    pool.outcome(pool.put("sleep", 0.0))
    assert (tmp_path / "log").read_text() == "preparing"


def test_another_replica_gets_a_process(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    start = PreparationParent.start

    def counted(parent: PreparationParent, number: int) -> Any:
        started.append(number)
        return start(parent, number)

    monkeypatch.setattr(PreparationParent, "start", counted)
    permits = Permits.create()
    other = Other(permits)
    pool = make_pool(permits)
    numbers = [pool.put("sleep", 0.02) for _ in range(200)]
    wait_until(lambda: len(pool.processes) == MOST)
    assert other.does(f"take({MOST})") is None
    time.sleep(0.3)
    assert other.does(f"take({MOST})") is not None
    assert pool.pool.pending, "although items wait"
    assert all(pool.outcome(number) for number in numbers)
    assert len(pool.processes) == MOST - 1
    assert len(started) == MOST, "no process ends only to be replaced"
    other.close()


def test_a_replica_without_work_wants_no_process(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, other replicas would end processes for it again and again."""
    monkeypatch.setattr(pools, "_WANTED_S", 0.0)
    permits = Permits.create()
    other = Other(permits)
    for _ in range(MOST):
        other.does(f"take({MOST})")
    pool = make_pool(permits)
    pool.outcome(pool.put("sleep", 0.0))
    assert other.does("is_wanted()")
    wait_until(lambda: not other.does("is_wanted()"))
    other.close()


def test_a_replica_without_a_process_comes_first(make_pool: Callable[..., Pool]) -> None:
    permits = Permits.create()
    with contextlib.closing(Other(permits)) as other:
        taken = [permits.take(MOST), permits.take(MOST)]
        pool = make_pool(permits)
        pool.outcome(pool.put("sleep", 0.0))
        assert other.does(f"take({MOST})") is None
        for permit in taken:
            assert permit is not None
            permits.give(permit)
        numbers = [pool.put("sleep", 0.02) for _ in range(20)]
        assert all(pool.outcome(number) for number in numbers)
        assert len(pool.processes) == 1
        assert other.does(f"take({MOST})") is not None


def test_large_inputs_and_results_stay_in_the_replica(pool: Pool) -> None:
    large = bytes(33 << 20)
    (sample,) = pool.outcome(pool.put("large", large))
    assert sample.extras["pid"] == os.getpid()
    # This one fits, but not together with its result.
    (sample,) = pool.outcome(pool.put("large", bytes(20 << 20)))
    assert sample.extras["pid"] == os.getpid()


def test_processes_end_with_the_replica(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool()
    pool.outcome(pool.put("sleep", 0.0))
    (pid,) = pool.processes
    started = time.monotonic()
    os.kill(pool.parent.pid, 9)
    wait_until(lambda: not psutil.pid_exists(pid))
    assert time.monotonic() - started < 5
    # Without the parent, the replica prepares everything.
    wait_until(lambda: not pool.processes)
    (sample,) = pool.outcome(pool.put("sleep", 0.0))
    assert sample.extras["pid"] == os.getpid()


def test_all_items_have_an_outcome_at_the_end(pool: Pool) -> None:
    numbers = [pool.put("sleep", 0.02) for _ in range(12)]
    pool.pool.finish()
    assert pool.outcomes.keys() == set(numbers)
    assert pool.pool.pending == 0
