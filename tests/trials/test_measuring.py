"""Results that a trial computes from the times of its callers' answers."""

import pytest

from stoker.workloads.evaluation.trials.measuring import steady_rate

CALLERS = 16


@pytest.mark.parametrize("rounds", [3, 5, 40])
def test_a_batch_of_all_callers_counts_for_the_time_that_it_took(rounds: int) -> None:
    ended = [(number + 0.001 * at, 1) for number in range(rounds) for at in range(CALLERS)]

    assert steady_rate(ended, CALLERS) == pytest.approx(16, rel=1e-6)


def test_callers_who_are_answered_one_by_one_count_alike() -> None:
    ended = [(0.1 * number, 2) for number in range(100)]

    assert steady_rate(ended, CALLERS) == pytest.approx(20)


def test_the_first_and_the_last_crowd_count_nothing() -> None:
    slow = [(10.0 + 10 * at, 1) for at in range(CALLERS)]
    steady = [(slow[-1][0] + 0.5 * (at + 1), 1) for at in range(64)]
    alone = [(steady[-1][0] + 10.0 * (at + 1), 1) for at in range(CALLERS)]

    assert steady_rate([*slow, *steady, *alone], CALLERS) == pytest.approx(2)
