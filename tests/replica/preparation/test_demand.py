"""When preparation processes are used, and how many."""

from stoker.replica.mean_time import FIRST_ITEMS
from stoker.replica.preparation.demand import (
    SLOW_S,
    WINDOW_S,
    PreparationDemand,
    Turnover,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_slow_items_need_processes() -> None:
    demand = PreparationDemand()
    for _ in range(FIRST_ITEMS):
        assert not demand.is_slow
        demand.took(5 * SLOW_S)
    assert demand.is_slow
    for _ in range(100):
        demand.took(0.5 * SLOW_S)
    assert not demand.is_slow


def test_processes_without_use_end_after_a_window() -> None:
    clock = Clock()
    demand = PreparationDemand(clock)
    for _ in range(FIRST_ITEMS):
        demand.took(5 * SLOW_S)
    demand.saw(3)
    assert demand.needed(8) == 8
    clock.now += WINDOW_S
    assert demand.needed(8) == 3
    demand.saw(1)
    clock.now += WINDOW_S
    assert demand.needed(3) == 0, "one item at a time needs no process"


def test_processes_end_if_items_became_quick() -> None:
    clock = Clock()
    demand = PreparationDemand(clock)
    demand.saw(8)
    clock.now += WINDOW_S
    assert demand.needed(4) == 0


def test_failed_starts_are_repeated_less_and_less_often() -> None:
    clock = Clock()
    turnover = Turnover(clock)
    assert turnover.is_allowed
    turnover.failed()
    assert not turnover.is_allowed
    clock.now += Turnover.FIRST_S
    assert turnover.is_allowed
    turnover.failed()
    clock.now += Turnover.FIRST_S
    assert not turnover.is_allowed
    clock.now += Turnover.FIRST_S
    assert turnover.is_allowed
    turnover.succeeded()
    turnover.failed()
    clock.now += Turnover.FIRST_S
    assert turnover.is_allowed
