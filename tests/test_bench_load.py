"""Loads of slow servers are extended until their rate is meaningful."""

from pathlib import Path

import pytest

from bench import load, throughput, wrk
from bench.common import Plan, Report
from bench.contenders import Scene
from bench.load import Contender, Measured
from bench.workloads import WORKLOADS

CONTENDER = Contender("SIE", 0, "http://127.0.0.1:1", "/v1/rerank", {})


def of_rate(rate: float, seconds: int) -> Measured:
    found = wrk.Found(int(rate * seconds), 0, "", seconds, 1.0, 1.0, 0.0)
    return Measured(found, 0.0, 0, {})


@pytest.mark.parametrize(
    ("rate", "seconds", "extended_s"),
    [
        # 30 answers at one a second take 30 s, with a margin 36 s.
        (1.0, 20, 36),
        (2.0, 10, 18),
        (0.1, 20, 60),
        (3.0, 10, 10),
        (1.0, 30, 30),
        # A load that is longer than the limit already.
        (0.1, 90, 90),
    ],
)
def test_a_load_is_extended_until_it_has_enough_answers(
    rate: float, seconds: int, extended_s: int
) -> None:
    assert load.extended_s(of_rate(rate, seconds), seconds) == extended_s


@pytest.mark.parametrize(
    ("rate", "is_quick", "loads"),
    [(1.0, False, [20, 36]), (100.0, False, [20]), (1.0, True, [20])],
)
def test_a_slow_contender_is_measured_again_for_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rate: float, is_quick: bool, loads: list[int]
) -> None:
    durations: list[int] = []

    def measured(_: Contender, __: list[bytes], clients: int, seconds: int) -> Measured:
        assert clients == 4
        durations.append(seconds)
        return of_rate(rate, seconds)

    monkeypatch.setattr(load, "measured", measured)
    plan = Plan(quick=is_quick)
    scene = Scene(Report("name", "title"), plan, WORKLOADS["rerank"], tmp_path, [], tmp_path)
    result, length = throughput._measured(scene, CONTENDER, 4, 20)
    assert durations == loads
    assert length == loads[-1]
    assert result.found.answered == int(rate * length)
