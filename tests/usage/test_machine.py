"""Fuzzes the ledger of two servers that share it. Faults are crashes between any two statements,
kills, lost answers and clocks that jump by a day. Each balance must equal the sum of its causes.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from stoker.runtime.metering import HOUR_MS, MIB
from stoker.store.db import Database
from stoker.store.tables.usage import Holding, Kind, Transfer, TransferKind, UsageCount
from stoker.tenancy.usage import balances, money
from stoker.tenancy.usage.accrual import MINUTE_MS
from stoker.tenancy.usage.ledger import GRANTS, Ledger, book_of
from stoker.tenancy.usage.schemas import GrantCreate
from tests.support.machines import Bench, Machine, bench, try_out
from tests.usage.support import ACCOUNT, STARTING, Clock, Lab, clear, price

__all__ = ["bench"]

DAY_MS = 24 * HOUR_MS
ACCOUNTS = (ACCOUNT, "acct_other")
RATES = price(1, hour=0)
servers, accounts = st.integers(0, 1), st.sampled_from(ACCOUNTS)
jumps = st.one_of(
    st.integers(-DAY_MS, DAY_MS), st.sampled_from((-DAY_MS, -HOUR_MS, -1, HOUR_MS, DAY_MS))
)
sizes = st.integers(0, 2**14)
amounts = st.integers(1, 10**10)
statements = st.integers(0, 12)


class CrashError(Exception):
    pass


@dataclass
class Worker:
    server: int
    account: str
    mib: int
    ended: bool = False
    used: int = 0
    """Memory use in MiB-milliseconds, by its server's monotonic clock."""
    told: int = 0
    """Memory use as of the last committed tick."""


@dataclass
class Stored:
    account: str
    mib: int
    since: int
    until: int | None = None
    """Latest wall clock time of the committed ticks."""
    gone: bool = False

    def tick(self, now: int) -> None:
        if self.gone:
            return
        if self.until is None:
            self.until = now if self.since < now else None
        elif now // MINUTE_MS > self.until // MINUTE_MS:
            self.until = now

    @property
    def used(self) -> int:
        return self.mib * (self.until - self.since) if self.until else 0


@dataclass
class Server:
    lab: Lab
    calls: int = 0
    told: int = 0
    """Calls as of the last committed tick."""
    workers: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def crashing(database: Database, after: int) -> AsyncIterator[None]:
    """Allows `after` statements and fails the next one, as if the server crashed there."""
    left = after

    def count(*_: Any) -> None:
        nonlocal left
        if not left:
            raise CrashError
        left -= 1

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", count)


class Books(Machine):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.bench = bench
        self.clocks = [Clock(), Clock()]
        self.workers: dict[str, Worker] = {}
        self.stored: dict[str, Stored] = {}
        self.granted = dict.fromkeys(ACCOUNTS, STARTING * money.MICRO)
        self.latest = max(clock.wall_ms for clock in self.clocks)
        """Latest time that any clock has shown."""
        self.gone_calls = 0
        """Stored calls of killed servers."""
        self.servers = [self._server(number) for number in range(2)]

    def _server(self, number: int) -> Server:
        return Server(Lab(self.bench.servers[number], self.clocks[number]))

    @initialize()
    def opened(self) -> None:
        async def work() -> None:
            await clear(self.bench.database)
            # Both servers find accounts without books.
            await asyncio.gather(*(server.lab.metering.open() for server in self.servers))

        self.run(work())
        for number in range(2):
            self.begin(number, ACCOUNTS[number], 1000)

    # --- time ---

    @rule(ms=st.integers(0, 2 * HOUR_MS))
    def pass_by(self, ms: int) -> None:
        for clock in self.clocks:
            clock.pass_by(ms)
        self._seen()
        for worker in self.workers.values():
            worker.used += 0 if worker.ended else worker.mib * ms

    @rule(server=servers, ms=jumps)
    def jump(self, server: int, ms: int) -> None:
        self.clocks[server].wall_ms += ms
        self._seen()

    @rule(server=servers, ms=st.sampled_from((2 * MINUTE_MS, HOUR_MS, DAY_MS)))
    def run_ahead(self, server: int, ms: int) -> None:
        """A server with a clock ahead considers the other server's workers lost and charges their
        known use. The workers continue.
        """
        self.tick(1 - server)
        self.jump(server, ms)
        self.tick(server)
        self.pass_by(MINUTE_MS)
        self.tick(1 - server)

    @rule(server=servers, ms=st.integers(1, HOUR_MS), after=statements)
    def end_in_a_crash(self, server: int, ms: int, after: int) -> None:
        """A worker that ends just before a failed tick is reported by the next tick."""
        self.pass_by(ms)
        self.end(0)
        self.tick_that_crashes(server, after)

    def _seen(self) -> None:
        self.latest = max(self.latest, *(clock.wall_ms for clock in self.clocks))

    # --- holdings and calls ---

    @rule(server=servers, account=accounts, mib=sizes)
    def begin(self, server: int, account: str, mib: int) -> None:
        name = f"rep_{len(self.workers)}"
        self.workers[name] = Worker(server, account, mib)
        self.servers[server].workers.append(name)
        self.servers[server].lab.begin(name, mib, account)

    def _alive(self, pick: int) -> tuple[str, Worker] | None:
        alive = [(name, worker) for name, worker in self.workers.items() if not worker.ended]
        return alive[pick % len(alive)] if alive else None

    @rule(pick=st.integers(0, 9), mib=sizes)
    def resize(self, pick: int, mib: int) -> None:
        if alive := self._alive(pick):
            name, worker = alive
            worker.mib = mib
            self.servers[worker.server].lab.meter.resize(name, mib * MIB)

    @rule(pick=st.integers(0, 9))
    def end(self, pick: int) -> None:
        if alive := self._alive(pick):
            name, worker = alive
            worker.ended = True
            self.servers[worker.server].lab.meter.end(name)

    @rule(server=servers)
    def serve(self, server: int) -> None:
        self.servers[server].calls += 1
        self.servers[server].lab.serve()

    @rule(server=servers, account=accounts, size=st.integers(1, 2**44))
    def store(self, server: int, account: str, size: int) -> None:
        lab = self.servers[server].lab
        identifier = self.run(lab.store(size, account))
        self.stored[identifier] = Stored(account, -(-size // MIB), lab.clock.wall_ms)

    @precondition(lambda self: any(not one.gone for one in self.stored.values()))
    @rule(pick=st.integers(0, 9))
    def remove(self, pick: int) -> None:
        names = [name for name, artifact in self.stored.items() if not artifact.gone]
        name = names[pick % len(names)]
        self.stored[name].gone = True
        self.run(self.servers[0].lab.remove(name))

    # --- ticks and their failures ---

    def _told(self, number: int) -> None:
        server = self.servers[number]
        server.told = server.calls
        for name in server.workers:
            self.workers[name].told = self.workers[name].used
        for artifact in self.stored.values():
            artifact.tick(self.clocks[number].wall_ms)

    @rule(server=servers)
    def tick(self, server: int) -> None:
        self.run(self.servers[server].lab.tick())
        self._told(server)

    @rule()
    def both_tick(self) -> None:
        async def work() -> None:
            await asyncio.gather(*(server.lab.tick() for server in self.servers))

        if self.clocks[0].wall_ms == self.clocks[1].wall_ms:
            # With different clocks, the order of the two ticks is unknown, and artifacts would have
            # two possible ends.
            self.run(work())
            for number in range(2):
                self._told(number)

    @rule(server=servers, after=statements)
    def tick_that_crashes(self, server: int, after: int) -> None:
        lab = self.servers[server].lab

        async def work() -> None:
            async with crashing(lab.database, after):
                await lab.tick()

        with contextlib.suppress(CrashError):
            self.run(work())
            self._told(server)

    @rule(server=servers)
    def tick_whose_answer_is_lost(self, server: int) -> None:
        """The tick is committed, but the server does not learn of it."""
        lab = self.servers[server].lab
        meter, counts = lab.meter, lab.counts
        originals = meter.acknowledge, counts.acknowledge
        meter.acknowledge = counts.acknowledge = lambda _told: None
        self.run(lab.tick())
        meter.acknowledge, counts.acknowledge = originals
        self._told(server)

    @rule(server=servers)
    def kill(self, server: int) -> None:
        """A kill loses exactly the values that were not stored."""
        gone = self.servers[server]
        self.gone_calls += gone.told
        for name in gone.workers:
            worker = self.workers[name]
            worker.used, worker.ended = worker.told, True
        self.servers[server] = self._server(server)
        self.run(self.servers[server].lab.metering.open())
        self._told(server)

    # --- credit ---

    @rule(server=servers, account=accounts, amount=amounts, taken=st.booleans())
    def grant(self, server: int, account: str, amount: int, taken: bool) -> None:
        self.run(self._grant(server, account, -amount if taken else amount))
        self.granted[account] += -amount if taken else amount

    @rule(server=servers, account=accounts, amount=amounts, after=statements)
    def grant_that_crashes(self, server: int, account: str, amount: int, after: int) -> None:
        async def work() -> None:
            async with crashing(self.servers[server].lab.database, after):
                await self._grant(server, account, amount)

        with contextlib.suppress(CrashError):
            self.run(work())
            self.granted[account] += amount

    async def _grant(self, server: int, account: str, amount: int) -> None:
        lab = self.servers[server].lab
        request = GrantCreate(amount_microcredits=amount, correction=amount < 0)
        async with lab.database.transaction() as session:
            await balances.grant(session, lab.credits, account, request)

    @rule(pick=st.integers(0, 99), amount=amounts)
    def repeat(self, pick: int, amount: int) -> None:
        """A repeated transfer with the same key is rejected."""
        lab = self.servers[0].lab

        async def work() -> None:
            moved = await lab.rows(Transfer)
            transfer: Transfer = moved[pick % len(moved)]
            async with lab.database.transaction() as session:
                await (await Ledger.open(session)).transfer(
                    key=transfer.key,
                    kind=TransferKind(transfer.kind),
                    source=GRANTS,
                    target=book_of(transfer.account_id),
                    microcredits=amount,
                    account_id=transfer.account_id,
                    now=transfer.created_at,
                )

        with pytest.raises(IntegrityError):
            self.run(work())

    # --- invariants ---

    def _parts(self, account: str) -> int:
        memory = sum(item.told for item in self.workers.values() if item.account == account)
        stored = sum(item.used for item in self.stored.values() if item.account == account)
        return money.parts(Kind.MEMORY, memory, RATES) + money.parts(Kind.STORAGE, stored, RATES)

    @invariant()
    def books_hold(self) -> None:
        self.run(self._check())

    async def _check(self) -> None:
        lab = self.servers[0].lab
        await lab.check_ledger()
        async with self.bench.database.reading() as session:
            account_balances = {item.account_id: item for item in await balances.left_of(session)}
        moved, charged = Counter[str](), Counter[str]()
        for item in await lab.rows(Transfer):
            moved[item.source] -= item.microcredits
            moved[item.target] += item.microcredits
            charged[item.holding_id or ""] += item.microcredits
        for account in ACCOUNTS:
            expected = self.granted[account] - self._parts(account) // money.PARTS
            balance = account_balances[account]
            assert balance.microcredits == expected, (balance, expected)
            assert balance.microcredits + balance.pending == moved[book_of(account)]
        rows: list[Holding] = await lab.rows(Holding)
        for row in rows:
            assert 0 <= row.charged_mib_ms <= row.mib_ms
            assert charged[row.id] == row.charged_microcredits
            assert not row.is_settled or row.charged_mib_ms == row.mib_ms
        assert len({(row.subject_id, row.hour) for row in rows}) == len(rows)
        counted = sum(row.requests for row in await lab.rows(UsageCount))
        assert counted == self.gone_calls + sum(server.told for server in self.servers)

    def teardown(self) -> None:
        """Ends all workers, moves every clock past them and asserts that nothing is left to
        charge.
        """

        async def work() -> None:
            for name, worker in self.workers.items():
                if not worker.ended:
                    self.servers[worker.server].lab.meter.end(name)
            for number, server in enumerate(self.servers):
                self.clocks[number].wall_ms = self.latest + 2 * HOUR_MS
                await server.lab.tick()
                self._told(number)
            open_rows = {
                row.subject_id
                for row in await self.servers[0].lab.rows(Holding)
                if not row.is_settled
            }
            assert open_rows <= {
                name for name, artifact in self.stored.items() if not artifact.gone
            }

        if self.workers or self.stored:
            self.run(work())
            self.run(self._check())


@pytest.mark.fault("b5", "f1", "f2")
def test_books_hold(bench: Bench) -> None:
    try_out(Books, bench, most=6, steps=20)
