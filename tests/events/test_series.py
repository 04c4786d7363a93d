"""Recorded time series match the calls that were reported to them."""

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.runtime.listening import CANCELLED, CANCELLED_STATUS, OK, Served
from stoker.server.events.series import (
    COARSE_S,
    COLUMNS,
    FINE_KEPT,
    FINE_S,
    Series,
    place_of,
    quantile,
)

START = 1_800_000_000.0
"""Start of a minute, in seconds since 1970."""


def call(seconds: float, outcome: str = OK, status: int = 200, **more: Any) -> Served:
    return Served(
        account_id="acct_1",
        deployment_id="dep_1",
        model="m",
        outcome=outcome,
        status=status,
        waited_s=0.0,
        seconds=seconds,
        **{"counts": {}, **more},
    )


def column(rows: Any, name: str) -> list[float | None]:
    at = COLUMNS.index(name)
    return [None if row is None or math.isnan(row[at]) else row[at] for row in rows]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_are_within_five_percent(share: float) -> None:
    rng = random.Random(7)
    seconds = [rng.lognormvariate(-3, 1.5) for _ in range(5000)]
    places: dict[int, int] = {}
    for duration in seconds:
        place = place_of(duration)
        places[place] = places.get(place, 0) + 1
    right = sorted(seconds)[math.ceil(share * len(seconds)) - 1] * 1000
    assert quantile(places, share) == pytest.approx(right, rel=0.05)


def test_quantile_of_nothing_and_of_extremes() -> None:
    assert quantile({}, 0.5) is None
    for seconds in (0.0, 1e-9, 1e-4):
        assert place_of(seconds) == 0
    assert place_of(1e9) == place_of(1e6)


def test_steps_hold_what_was_told_in_them() -> None:
    series = Series(START)
    series.add(call(0.1, counts={"input_tokens": 5, "output_tokens": 7}), START + 1)
    series.add(call(0.2, "invalid_request", 400), START + 2)
    series.add(call(0.4, "timeout", 504), START + 6)
    series.add(call(0.0, CANCELLED, CANCELLED_STATUS), START + 7)
    # After a gap of ten seconds, in which one step has no calls.
    series.add(call(0.1), START + 17)
    begin, rows = series.rows(START + 18, FINE_S, 12)
    assert begin == START - 8 * FINE_S
    nothing = [None] * 8
    assert column(rows, "ok") == [*nothing, 1, 0, None, 1]
    assert column(rows, "client_error") == [*nothing, 1, 1, None, 0]
    assert column(rows, "server_error") == [*nothing, 0, 1, None, 0]
    assert column(rows, "tokens") == [*nothing, 12, 0, None, 0]
    p50 = column(rows, "p50")
    assert p50[8] == pytest.approx(100, rel=0.05) and p50[9] == pytest.approx(400, rel=0.05)
    assert column(rows, "p99")[8] == pytest.approx(200, rel=0.05)
    # The queue was never observed.
    assert column(rows, "queue") == [None] * 12


def test_minutes_are_the_sums_of_their_steps() -> None:
    series, rng, now = Series(START), random.Random(3), START
    reported: dict[int, list[float]] = {}
    while now < START + 3 * 3600:
        seconds = rng.uniform(0.01, 2)
        series.add(call(seconds), now)
        reported.setdefault(int(now) // COARSE_S, []).append(seconds * 1000)
        now += rng.uniform(0.1, 40)
    begin, rows = series.rows(now, COARSE_S, 180)
    for number, (count, p90) in enumerate(
        zip(column(rows, "ok"), column(rows, "p90"), strict=True)
    ):
        durations = sorted(reported.get(int(begin) // COARSE_S + number, []))
        assert (count or 0) == len(durations)
        if durations:
            assert p90 == pytest.approx(durations[math.ceil(0.9 * len(durations)) - 1], rel=0.05)


def test_what_is_looked_at() -> None:
    series = Series(START)
    for second, queue in ((1, 3), (4, 9), (6, 0)):
        series.see(
            START + second, queue=queue, replicas=2, memory_bytes=2**31, passes=4, samples=10
        )
    _, rows = series.rows(START + 7, FINE_S, 2)
    assert column(rows, "queue") == [9, 0]
    assert column(rows, "replicas") == [2, 2] and column(rows, "memory_bytes") == [2**31] * 2
    assert column(rows, "batch_size") == [2.5, 2.5]
    assert column(rows, "ok") == [0, 0] and column(rows, "p50") == [None, None]


def test_an_hour_later_a_place_is_another_steps() -> None:
    series = Series(START)
    series.add(call(0.1), START)
    series.add(call(0.1), START + FINE_KEPT * FINE_S)
    series.add(call(0.1), START + FINE_KEPT * FINE_S + FINE_S)
    _, rows = series.rows(START + FINE_KEPT * FINE_S + FINE_S, FINE_S, FINE_KEPT)
    assert [count for count in column(rows, "ok") if count] == [1, 1]
    _, day = series.rows(START + 3 * 86_400, COARSE_S, 1440)
    assert [count for count in column(day, "ok") if count] == []


def test_a_clock_that_goes_back_loses_nothing() -> None:
    series = Series(START)
    moments: Iterator[float] = iter((10, 11, 3, 2, 12))
    for moment in moments:
        series.add(call(0.1), START + moment)
    _, rows = series.rows(START + 12, FINE_S, 3)
    assert sum(count or 0 for count in column(rows, "ok")) == 5
