"""In any order of events, the bill matches the total use and the books balance."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.runtime.metering import HOUR_MS, MIB
from stoker.store.db import Database
from stoker.store.tables.usage import Kind
from stoker.tenancy.usage import balances, money
from stoker.tenancy.usage.schemas import GrantCreate
from tests.usage.support import ACCOUNT, HOUR, STARTING, Clock, Lab, clear, price

ACCOUNTS = (ACCOUNT, "acct_other")
GIB_HOUR_PARTS = 720_000_000
"""Cost of a MiB-millisecond of memory at one credit per GiB-hour, in parts of a micro-credit."""
FLEX_PARTS = 360_000_000
"""Cost of a MiB-millisecond of memory during background work, at half a credit."""

servers, workers, accounts = st.integers(0, 1), st.integers(0, 3), st.sampled_from(ACCOUNTS)
sizes = st.integers(0, 2**14)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 2 * HOUR_MS)),
        st.tuples(st.just("jump"), st.integers(-HOUR_MS, HOUR_MS)),
        st.tuples(st.just("begin"), servers, workers, accounts, sizes),
        st.tuples(st.just("resize"), servers, workers, sizes),
        st.tuples(st.just("flex"), servers, workers, st.booleans()),
        st.tuples(st.just("end"), servers, workers),
        st.tuples(st.just("tick"), servers),
        st.tuples(st.just("lost answer"), servers),
        st.tuples(st.just("grant"), accounts, st.integers(1, 10**9)),
        st.tuples(st.just("correct"), accounts, st.integers(1, 10**9)),
    ),
    max_size=30,
)


class Bench:
    """Two servers and an independent sum of their workers' memory use."""

    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.labs = [Lab(database, self.clock) for _ in range(2)]
        self.held: dict[tuple[int, int], tuple[str, str, int]] = {}
        """Maps a server and a worker number to the worker's id, account and MiB."""
        self.flex: set[str] = set()
        """Ids of the workers that do background work only."""
        self.cost = dict.fromkeys(ACCOUNTS, 0)
        """Maps an account to its costs in parts of a micro-credit."""
        self.granted = dict.fromkeys(ACCOUNTS, STARTING * money.MICRO)
        self.made = 0

    def pass_by(self, ms: int) -> None:
        self.clock.pass_by(ms)
        for worker, account, mib in self.held.values():
            self.cost[account] += mib * ms * (FLEX_PARTS if worker in self.flex else GIB_HOUR_PARTS)

    def begin(self, server: int, number: int, account: str, mib: int) -> None:
        if (server, number) not in self.held:
            self.made += 1
            self.held[server, number] = (f"rep_{self.made}", account, mib)
            self.labs[server].begin(f"rep_{self.made}", mib, account)

    def resize(self, server: int, number: int, mib: int) -> None:
        if known := self.held.get((server, number)):
            self.held[server, number] = (*known[:2], mib)
            self.labs[server].meter.resize(known[0], mib * MIB)

    def set_flex(self, server: int, number: int, is_flex: bool) -> None:
        if known := self.held.get((server, number)):
            self.flex = self.flex | {known[0]} if is_flex else self.flex - {known[0]}
            self.labs[server].meter.set_flex(known[0], is_flex=is_flex)

    def end(self, server: int, number: int) -> None:
        if known := self.held.pop((server, number), None):
            self.labs[server].meter.end(known[0])

    async def grant(self, account: str, amount: int) -> None:
        self.granted[account] += amount
        request = GrantCreate(amount_microcredits=amount, correction=amount < 0)
        async with self.labs[0].database.transaction() as session:
            await balances.grant(session, self.labs[0].credits, account, request)

    async def do(self, step: tuple) -> None:
        match step:
            case ("pass", ms):
                self.pass_by(ms)
            case ("jump", ms):
                self.clock.wall_ms += ms
            case ("begin", *rest):
                self.begin(*rest)
            case ("resize", *rest):
                self.resize(*rest)
            case ("flex", *rest):
                self.set_flex(*rest)
            case ("end", *rest):
                self.end(*rest)
            case ("tick", server):
                await self.labs[server].tick()
            case ("lost answer", server):
                # The tick is committed, but the server does not learn of it.
                lab = self.labs[server]
                measured = lab.meter.take()
                lab.meter.acknowledge, acknowledge = lambda _held: None, lab.meter.acknowledge
                await lab.tick()
                lab.meter.acknowledge = acknowledge
                assert lab.meter.take() == measured
            case ("grant", account, amount):
                await self.grant(account, amount)
            case ("correct", account, amount):
                await self.grant(account, -amount)

    async def check(self) -> None:
        for server, number in list(self.held):
            self.end(server, number)
        for lab in self.labs:
            await lab.tick()
        lab = self.labs[0]
        for account in ACCOUNTS:
            expected = self.cost[account] // money.PARTS
            assert await lab.charged(account) == expected
            async with lab.database.reading() as session:
                balance = await balances.left(session, account)
            assert balance == balances.Balance(account, self.granted[account] - expected, 0)
        await lab.check_ledger()


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Database]]:
    path: Path = tmp_path_factory.mktemp("properties")
    with asyncio.Runner() as runner:
        database = Database(f"sqlite+aiosqlite:///{path}/usage.db")
        runner.run(database.migrate())
        yield runner, database
        runner.run(database.close())


@pytest.mark.fault("f1")
@settings(max_examples=25, deadline=None)
@given(steps)
def test_any_interleaving_costs_the_same(at_work, steps: list[tuple]) -> None:
    runner, database = at_work

    async def example() -> None:
        await clear(database)
        bench = Bench(database)
        for lab in bench.labs:
            await lab.metering.open()
        for step in steps:
            await bench.do(step)
        await bench.check()

    runner.run(example())


@given(
    st.lists(st.integers(0, 10**12), max_size=50),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
)
def test_any_split_of_a_holding_costs_the_same(
    split: list[int], memory: int, storage: int, flex: int | None
) -> None:
    rates = price(1, hour=HOUR, memory=memory, flex=flex, storage=storage)
    for kind in Kind:
        charged = carry = 0
        for mib_ms in split:
            microcredits, carry = divmod(carry + money.parts(kind, mib_ms, rates), money.PARTS)
            charged += microcredits
        assert charged == money.microcredits(kind, sum(split), rates)


@given(st.integers(-(10**18), 10**18))
def test_credits_are_written_exactly(amount: int) -> None:
    text = money.in_credits(amount)
    whole, _, rest = text.removeprefix("-").partition(".")
    sign = -1 if text.startswith("-") else 1
    assert sign * (int(whole) * 1_000_000 + int(rest)) == amount
    assert len(rest) == 6
