from hypothesis import given
from hypothesis import strategies as st

from stoker.runtime.metering import HOUR_MS, MIB, Holding, Meter

START_MS = 490_000 * HOUR_MS


class Clock:
    """A monotonic and a wall clock that advance together until one is set."""

    def __init__(self) -> None:
        self.monotonic_ms = 5_000
        self.wall_ms = START_MS

    def pass_(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms


def metered(clock: Clock) -> Meter:
    return Meter(lambda: clock.monotonic_ms, lambda: clock.wall_ms)


def begin(meter: Meter, worker_id: str, memory_bytes: int) -> None:
    meter.begin(
        worker_id,
        account_id="acct_1",
        deployment_id="dep_1",
        model="ner",
        memory_bytes=memory_bytes,
    )


def totals(holdings: list[Holding]) -> dict[int, int]:
    return {holding.hour: holding.mib_ms for holding in holdings}


class TestHolding:
    def test_counts_each_size_for_its_time(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", 300 * MIB)
        clock.pass_(1_500)
        meter.resize("rep_1", 412 * MIB + 1)
        clock.pass_(20_000)
        meter.end("rep_1")
        clock.pass_(60_000)
        (holding,) = meter.take()
        assert holding.mib_ms == 300 * 1_500 + 413 * 20_000
        assert holding.peak_mib == 413
        assert (holding.start_ms, holding.end_ms) == (START_MS, START_MS + 21_500)
        assert holding.is_final

    def test_grows_until_it_is_over(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", 10 * MIB)
        clock.pass_(10_000)
        (first,) = meter.take()
        clock.pass_(10_000)
        (second,) = meter.take()
        assert (first.mib_ms, second.mib_ms) == (100_000, 200_000)
        assert not second.is_final

    def test_is_split_where_hours_end(self):
        clock = Clock()
        meter = metered(clock)
        clock.pass_(HOUR_MS - 1_000)
        begin(meter, "rep_1", 2 * MIB)
        clock.pass_(HOUR_MS + 1_750)
        hour = START_MS // HOUR_MS
        holdings = meter.take()
        assert totals(holdings) == {hour: 2_000, hour + 1: 2 * HOUR_MS, hour + 2: 1_500}
        assert [holding.is_final for holding in holdings] == [True, True, False]

    def test_that_was_not_acknowledged_is_told_again(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", MIB)
        clock.pass_(10)
        meter.end("rep_1")
        holdings = meter.take()
        assert meter.take() == holdings
        meter.acknowledge(holdings)
        assert meter.take() == []

    def test_that_grew_while_it_was_written_is_told_again(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", MIB)
        clock.pass_(10)
        holdings = meter.take()
        clock.pass_(5)
        meter.end("rep_1")
        meter.acknowledge(holdings)
        assert totals(meter.take()) == {START_MS // HOUR_MS: 15}

    def test_of_a_past_hour_is_told_once_more_as_final(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", MIB)
        clock.pass_(HOUR_MS)
        meter.acknowledge(meter.take())
        clock.pass_(1)
        assert totals(meter.take()) == {START_MS // HOUR_MS + 1: 1}


class TestClockJumps:
    def test_back_change_no_amount(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", MIB)
        clock.pass_(1_000)
        meter.take()
        clock.wall_ms -= 5 * HOUR_MS
        clock.pass_(2_000)
        meter.end("rep_1")
        assert sum(holding.mib_ms for holding in meter.take()) == 3_000

    def test_forward_change_no_amount(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", MIB)
        clock.wall_ms += 7 * HOUR_MS
        clock.pass_(2_000)
        meter.end("rep_1")
        assert sum(holding.mib_ms for holding in meter.take()) == 2_000


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * HOUR_MS), st.integers(0, 2**36), st.integers(-HOUR_MS, HOUR_MS)
        ),
        max_size=20,
    )
)
def test_sums_are_exact_whatever_happens_between(steps: list[tuple[int, int, int]]):
    clock = Clock()
    meter = metered(clock)
    begin(meter, "rep_1", 7 * MIB)
    mib, expected = 7, 0
    written: dict[int, int] = {}
    for ms, size, jump in steps:
        clock.pass_(ms)
        expected += mib * ms
        clock.wall_ms += jump
        holdings = meter.take()
        written |= totals(holdings)
        meter.acknowledge(holdings)
        meter.resize("rep_1", size)
        mib = -(-size // MIB)
    meter.end("rep_1")
    written |= totals(meter.take())
    assert sum(written.values()) == expected


class TestL6:
    def test_deleted_deployment_is_billed_to_the_end_and_has_no_total(self):
        clock = Clock()
        meter = metered(clock)
        begin(meter, "rep_1", 10 * MIB)
        clock.pass_(1_000)
        assert meter.totals() == {"dep_1": 10_000}
        meter.forget("dep_1")
        # Its process was killed, but its end is noticed later.
        clock.pass_(500)
        assert meter.totals() == {}
        meter.end("rep_1")
        (holding,) = meter.take()
        assert (holding.mib_ms, holding.is_final) == (15_000, True)
        meter.acknowledge([holding])
        assert meter.totals() == {}
        assert not meter.take()
