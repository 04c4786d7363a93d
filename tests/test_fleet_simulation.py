"""Simulated fleets that are small enough to predict their outcomes."""

import pytest

from tools.fleet_simulation import GIB, KINDS, Scene, Simulation

TINY = Scene("tiny", deployments=3, nodes=1, calls_per_s=5.0, seconds=120.0, settled_s=60.0)


def test_where_all_fits_all_is_found_loaded() -> None:
    outcome = Simulation(TINY).run()
    # 5 calls per second for a minute, ± 5 standard deviations.
    assert 213 <= outcome.calls <= 387
    assert (outcome.found_loaded, outcome.starts, outcome.evictions) == (outcome.calls, 0, 0)
    assert max(outcome.waits_s) < 0.1
    assert outcome.failed == 0


def test_memory_is_counted() -> None:
    simulation = Simulation(TINY)
    outcome = simulation.run()
    sizes = sum(deployment.kind.bytes for deployment in simulation._deployments)
    assert outcome.byte_s == pytest.approx(60.0 * sizes)


def test_two_that_exclude_each_other_take_turns() -> None:
    largest = max(kind.bytes for kind in KINDS)
    scene = Scene(
        "narrow", deployments=40, nodes=1, node_bytes=largest, calls_per_s=1.0, seconds=400.0
    )
    outcome = Simulation(Scene(**{**vars(scene), "settled_s": 100.0})).run()
    assert outcome.evictions > 10
    assert 0 < outcome.found_loaded < outcome.calls
    assert outcome.byte_s <= 300.0 * largest


def test_what_rests_is_ended_unless_it_is_warm() -> None:
    scene = {**vars(TINY), "calls_per_s": 0.02, "idle_s": 10.0, "seconds": 2000.0}
    cold = Simulation(Scene(**scene)).run()
    warm = Simulation(Scene(**{**scene, "warm": 3})).run()
    assert cold.found_loaded < cold.calls
    assert warm.found_loaded == warm.calls > 0
    assert cold.byte_s < warm.byte_s / 2


def test_who_was_on_a_lost_node_is_loaded_elsewhere() -> None:
    scene = Scene(
        "lost",
        deployments=20,
        nodes=2,
        node_bytes=32 * GIB,
        calls_per_s=20.0,
        seconds=300.0,
        settled_s=100.0,
        lost=1,
    )
    outcome = Simulation(scene).run()
    assert outcome.starts >= 5
    assert outcome.found_loaded >= outcome.calls * 0.95
    assert max(outcome.after_loss_s) > 0.2


def test_the_same_seed_the_same_fleet() -> None:
    one, two = (Simulation(TINY, seed=3).run() for _ in range(2))
    assert one == two
    assert one != Simulation(TINY, seed=4).run()
