import pytest

from stoker.runtime.pool.demand import HALF_LIFE_S, Demand
from tests.runtime.pool.world import Clock


def called(clock: Clock, count: int, every_s: float = 1.0) -> Demand:
    demand = Demand(clock)
    for _ in range(count):
        clock.now += every_s
        demand.add()
    return demand


def test_a_deployment_without_calls_has_no_demand():
    assert Demand(Clock()).rate == 0


def test_the_rate_is_that_of_regular_calls():
    rate = called(Clock(), 3000).rate
    assert rate == pytest.approx(1.0, rel=0.01)


def test_equally_many_calls_rank_by_their_time():
    clock = Clock()
    earlier = called(clock, 2)
    later = called(clock, 2)
    assert earlier.rate < later.rate


def test_calls_fade():
    clock = Clock()
    demand = called(clock, 1)
    first = demand.rate
    clock.now += HALF_LIFE_S
    assert demand.rate == pytest.approx(first / 2)


def test_many_calls_lose_their_rank_once_they_end():
    clock = Clock()
    busy = called(clock, 10_000, every_s=0.01)
    clock.now += 60
    assert busy.rate == pytest.approx(1 / 60)
