"""Full garbage collection waits for a quiet moment."""

import asyncio
import gc
import weakref

import pytest

from stoker.server import garbage
from stoker.server.garbage import MANY, MOST_WAIT_S, QUIET, Garbage

DUE = gc.get_threshold()[2]


class Cycle:
    def __init__(self) -> None:
        self.itself = self


class Time:
    def __init__(self) -> None:
        self.now = self.had = 0.0

    def passes(self, seconds: float, share: float) -> None:
        self.now += seconds
        self.had += seconds * share


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(autouse=True)
def nothing_old() -> None:
    """Excludes the objects that earlier tests made from collection, like `tests/conftest.py`."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def watched(time: Time) -> Garbage:
    make_it_due()
    return Garbage(lambda: time.now, lambda: time.had)


def make_it_due() -> None:
    for _ in range(DUE + 1):
        gc.collect(1)


def test_a_quiet_moment_is_taken(watched: Garbage, time: Time):
    time.passes(1, QUIET / 2)
    assert watched.is_time()


def test_a_busy_loop_is_spared_but_not_for_ever(watched: Garbage, time: Time):
    for _ in range(int(MOST_WAIT_S)):
        time.passes(1, QUIET * 2)
        assert not watched.is_time()
    time.passes(1, QUIET * 2)
    assert watched.is_time()


def test_a_wait_begins_when_there_is_need(watched: Garbage, time: Time):
    gc.collect()
    time.passes(2 * MOST_WAIT_S, 0)
    assert not watched.is_time()
    make_it_due()
    time.passes(1, QUIET * 2)
    assert not watched.is_time()


def test_large_requests_in_work_are_not_gone_through(watched: Garbage, time: Time):
    objects = [[i] for i in range(2 * MANY)]
    make_it_due()
    time.passes(1, 0)
    assert not watched.is_time()
    del objects
    time.passes(1, 0)
    assert watched.is_time()


async def test_what_holds_itself_goes_and_only_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    thresholds = gc.get_threshold()
    gone = weakref.ref(cycle := Cycle())
    working = asyncio.create_task(Garbage(processor=lambda: 0.0).run())
    await asyncio.sleep(0)
    # The cycle is in the oldest generation, so automatic collections do not find it.
    gc.collect()
    del cycle
    make_it_due()
    made = [[i] for i in range(2 * MANY)]
    assert gone() is not None and made
    del made
    async with asyncio.timeout(10):
        while gone() is not None:
            await asyncio.sleep(0.001)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert gc.get_threshold() == thresholds
