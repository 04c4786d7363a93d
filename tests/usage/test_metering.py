"""The bill is correct to the micro-credit, independent of events between two ticks."""

import asyncio

import pytest
from sqlalchemy import delete

from stoker.base.errors import InsufficientCreditsError
from stoker.runtime.metering import HOUR_MS, MIB
from stoker.store import db
from stoker.store.db import Database
from stoker.store.tables.usage import Book, Holding, Transfer, UsageCount
from stoker.tenancy.usage import balances
from stoker.tenancy.usage.accrual import STALE_MS
from stoker.tenancy.usage.schemas import GrantCreate
from tests.usage.support import ACCOUNT, HOUR, STARTING, Clock, Lab, price

TICK_MS = 30_000


async def left(lab: Lab, account: str = ACCOUNT) -> balances.Balance:
    async with lab.database.reading() as session:
        return await balances.left(session, account)


class TestBill:
    async def test_of_a_scripted_hour(self, lab: Lab) -> None:
        """Bills two workers and an artifact, from ten past one hour to ten past the next."""
        lab.clock.pass_by(600_000)
        await lab.store(2_500 * MIB)
        lab.begin("rep_a", 300)
        for _ in range(30):  # 15 minutes
            await lab.tick(TICK_MS)
        lab.meter.resize("rep_a", 412 * MIB)
        lab.begin("rep_b", 1_024, deployment="dep_2")
        for _ in range(60):  # 30 minutes
            await lab.tick(TICK_MS)
        lab.meter.end("rep_b")
        for _ in range(30):  # 15 minutes
            await lab.tick(TICK_MS)
        lab.meter.end("rep_a")
        await lab.tick()
        holdings = {
            (holding.subject_id, holding.hour): holding for holding in await lab.rows(Holding)
        }
        # rep_a: 300 MiB for 900 s and 412 MiB for 2,700 s. 600 s of these are in the second hour.
        assert holdings["rep_a", HOUR].mib_ms == 300 * 900_000 + 412 * 2_100_000 == 1_135_200_000
        assert holdings["rep_a", HOUR + 1].mib_ms == 412 * 600_000 == 247_200_000
        # rep_b: 1,024 MiB for 1,800 s.
        assert holdings["rep_b", HOUR].mib_ms == 1_843_200_000
        # The artifact: 2,500 MiB for 3,000 s and 600 s.
        (stored,) = {
            holding.subject_id for holding in holdings.values() if holding.kind == "storage"
        }
        assert holdings[stored, HOUR].mib_ms == 7_500_000_000
        assert holdings[stored, HOUR + 1].mib_ms == 1_500_000_000
        # Memory: 3,225,600,000 of the 3,686,400,000 MiB-ms of a credit, exactly 0.875 credits.
        # Storage: 9,000,000,000 of 2,654,208,000,000, which is 3,390.842 micro-credits. The second
        # hour's sixth of it (565.140) is not charged yet, because its artifact still exists.
        assert await lab.charged() == 875_000 + 2_825
        balance = await left(lab)
        assert balance.pending == 565
        assert balance.microcredits == STARTING * 1_000_000 - 875_000 - 3_390
        await lab.check_ledger()

    async def test_of_each_hour_is_at_its_own_price(self, lab: Lab) -> None:
        async with lab.database.transaction() as session:
            session.add(price(2, hour=HOUR + 1, memory=3_000_000))
        lab.begin("rep_a", 1_024)
        for _ in range(8):
            await lab.tick(HOUR_MS // 4)
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 1_000_000 + 3_000_000
        versions = {holding.hour: holding.price_version for holding in await lab.rows(Holding)}
        assert (versions[HOUR], versions[HOUR + 1]) == (1, 2)

    async def test_of_nothing_where_prices_are_zero(self, lab: Lab) -> None:
        async with lab.database.transaction() as session:
            session.add(price(2, hour=HOUR, memory=0, storage=0))
        lab.begin("rep_a", 1_024)
        await lab.tick(TICK_MS)
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 0
        (holding,) = await lab.rows(Holding)
        assert holding.is_settled

    async def test_carries_what_rounding_leaves(self, lab: Lab) -> None:
        """A worker of 1 MiB for 1 ms costs 0.000271 micro-credits: 3,687 of them cost 1."""
        for number in range(3_686):
            lab.meter.begin(
                f"rep_{number}",
                account_id=ACCOUNT,
                deployment_id="dep_1",
                model="m",
                memory_bytes=MIB,
            )
        lab.clock.pass_by(1)
        for number in range(3_686):
            lab.meter.end(f"rep_{number}")
        await lab.tick()
        assert await lab.charged() == 0
        lab.begin("rep_last", 1)
        lab.clock.pass_by(1)
        lab.meter.end("rep_last")
        await lab.tick()
        assert await lab.charged() == 1


class TestFlex:
    async def test_an_hour_of_both_prices(self, lab: Lab) -> None:
        """A worker of 1 GiB does background work for 15 of its 60 minutes."""
        lab.begin("rep_a", 1_024)
        await lab.tick(HOUR_MS // 4)
        lab.meter.set_flex("rep_a", is_flex=True)
        await lab.tick(HOUR_MS // 8)
        lab.meter.set_flex("rep_a", is_flex=True)
        await lab.tick(HOUR_MS // 8)
        lab.meter.set_flex("rep_a", is_flex=False)
        await lab.tick(HOUR_MS // 2)
        lab.meter.end("rep_a")
        await lab.tick()
        rows = {(row.kind, row.hour): row for row in await lab.rows(Holding)}
        assert rows["memory", HOUR].mib_ms == 1_024 * HOUR_MS * 3 // 4
        assert rows["flex", HOUR].mib_ms == 1_024 * HOUR_MS // 4
        assert rows["flex", HOUR].charged_microcredits == 125_000
        assert await lab.charged() == 750_000 + 125_000
        assert lab.meter.totals() == {"dep_1": 1_024 * HOUR_MS}
        await lab.check_ledger()

    async def test_a_row_that_rests_and_grows_again_is_charged_once(self, lab: Lab) -> None:
        """A row that rests for a minute counts as that of a lost server, and is charged early."""
        lab.begin("rep_a", 1_024)
        for is_flex in (True, False, True, False):
            lab.meter.set_flex("rep_a", is_flex=is_flex)
            for _ in range(5):
                await lab.tick(HOUR_MS // 40)
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 250_000 + 125_000
        assert len(await lab.rows(Holding)) == 2
        await lab.check_ledger()

    async def test_of_a_killed_server(self, lab: Lab) -> None:
        lab.begin("rep_a", 1_024)
        lab.meter.set_flex("rep_a", is_flex=True)
        await lab.tick(HOUR_MS // 4)
        after = Lab(lab.database, lab.clock)
        await after.metering.open()
        assert (await left(after)).pending == 125_000
        await after.tick(STALE_MS + 1)
        assert await after.charged() == 125_000
        await after.check_ledger()

    async def test_each_hour_at_its_own_price(self, lab: Lab) -> None:
        """A version of the price list from before background work had a price bills it in full."""
        async with lab.database.transaction() as session:
            session.add(price(2, hour=HOUR + 1, memory=3_000_000, flex=1_000_000))
            session.add(price(3, hour=HOUR + 2, memory=2_000_000, flex=None))
        lab.begin("rep_a", 1_024)
        lab.meter.set_flex("rep_a", is_flex=True)
        for _ in range(12):
            await lab.tick(HOUR_MS // 4)
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 500_000 + 1_000_000 + 2_000_000


class TestTick:
    async def test_charges_when_the_worker_is_gone(self, lab: Lab) -> None:
        lab.begin("rep_a", 1_024)
        await lab.tick(HOUR_MS // 2)
        assert await lab.charged() == 0
        assert (await left(lab)).pending == 500_000
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 500_000
        assert await left(lab) == balances.Balance(ACCOUNT, STARTING * 1_000_000 - 500_000, 0)

    async def test_told_again_changes_nothing(self, lab: Lab) -> None:
        """A tick may have been committed without an acknowledgement, so the next one reports
        everything again.
        """
        lab.begin("rep_a", 1_024)
        lab.serve(input_tokens=7)
        lab.clock.pass_by(HOUR_MS // 4)
        lab.meter.end("rep_a")
        lab.meter.acknowledge = lambda _held: None  # type: ignore[method-assign]
        lab.counts.acknowledge = lambda _counted: None  # type: ignore[method-assign]
        for _ in range(3):
            await lab.tick()
        assert await lab.charged() == 250_000
        (counted,) = await lab.rows(UsageCount)
        assert (counted.requests, counted.input_tokens) == (1, 7)

    async def test_late_smaller_value_shrinks_nothing(self, lab: Lab) -> None:
        lab.begin("rep_a", 1_024)
        lab.clock.pass_by(TICK_MS)
        late = lab.meter.take()
        await lab.tick(TICK_MS)
        lab.meter.take = lambda: late  # type: ignore[method-assign]
        await lab.tick()
        (holding,) = await lab.rows(Holding)
        assert holding.mib_ms == 1_024 * 2 * TICK_MS

    async def test_that_fails_loses_nothing(self, lab: Lab, monkeypatch: pytest.MonkeyPatch):
        lab.begin("rep_a", 1_024)
        lab.serve()
        with monkeypatch.context() as patched:
            patched.setattr(
                "stoker.tenancy.usage.accrual.charge",
                lambda *_: (_ for _ in ()).throw(OSError("disk")),
            )
            with pytest.raises(OSError, match="disk"):
                await lab.tick(TICK_MS)
        assert await lab.rows(Holding) == []
        lab.meter.end("rep_a")
        await lab.tick()
        (holding,) = await lab.rows(Holding)
        assert holding.mib_ms == 1_024 * TICK_MS
        assert len(await lab.rows(UsageCount)) == 1


class TestKilledServer:
    async def test_is_charged_for_once_it_has_been_silent(self, lab: Lab) -> None:
        lab.begin("rep_a", 1_024)
        await lab.tick(HOUR_MS // 4)
        after = Lab(lab.database, lab.clock)
        await after.metering.open()
        assert await after.charged() == 0, "its server may be another one that lives"
        await after.tick(STALE_MS + 1)
        assert await after.charged() == 250_000
        await after.tick(STALE_MS)
        assert await after.charged() == 250_000
        await after.check_ledger()

    async def test_that_was_only_slow_is_charged_for_the_rest(self, lab: Lab) -> None:
        other = Lab(lab.database, lab.clock)
        lab.begin("rep_a", 1_024)
        await lab.tick(HOUR_MS // 4)
        await other.tick(HOUR_MS // 4)
        assert await lab.charged() == 250_000
        await lab.tick()
        assert (await left(lab)).pending == 250_000
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 500_000
        assert len(await lab.rows(Holding)) == 1
        await lab.check_ledger()


@pytest.mark.fault("f2")
class TestSeveralServers:
    async def test_charge_nothing_twice(self, database: Database) -> None:
        clock = Clock()
        labs = [Lab(database, clock) for _ in range(3)]
        await asyncio.gather(*(lab.metering.open() for lab in labs))
        await labs[0].store(1_024 * MIB)
        for number, lab in enumerate(labs):
            lab.begin(f"rep_{number}", 1_024)
        for _ in range(8):
            clock.pass_by(HOUR_MS // 4)
            await asyncio.gather(*(lab.metering.tick() for lab in labs))
        for number, lab in enumerate(labs):
            lab.meter.end(f"rep_{number}")
        await asyncio.gather(*(lab.metering.tick() for lab in labs))
        memory = [row for row in await labs[0].rows(Transfer) if row.kind == "memory"]
        assert sum(row.microcredits for row in memory) == 3 * 2 * 1_000_000
        stored = [row for row in await labs[0].rows(Holding) if row.kind == "storage"]
        assert sum(row.mib_ms for row in stored) == 1_024 * 2 * HOUR_MS
        openings = [row for row in await labs[0].rows(Transfer) if row.kind == "opening"]
        assert sorted(row.account_id for row in openings) == ["acct_other", ACCOUNT]
        await labs[0].check_ledger()


class TestStorage:
    async def test_goes_on_over_a_downtime(self, lab: Lab) -> None:
        await lab.store(1_024 * MIB)
        await lab.tick(HOUR_MS // 2)
        after = Lab(lab.database, lab.clock)
        after.clock.pass_by(720 * HOUR_MS - HOUR_MS // 2)
        await after.metering.open()
        holdings = await after.rows(Holding)
        assert sum(holding.mib_ms for holding in holdings) == 1_024 * 720 * HOUR_MS
        assert len({holding.hour for holding in holdings}) == len(holdings) == 720
        # A GiB for a month of 30 days costs one credit. Its last hour has not ended.
        assert await after.charged() + (await left(after)).pending == 1_000_000

    async def test_ends_with_the_artifact(self, lab: Lab) -> None:
        artifact = await lab.store(MIB + 1)
        await lab.tick(600_000)
        await lab.remove(artifact)
        await lab.tick(TICK_MS)
        await lab.tick(HOUR_MS)
        (holding,) = await lab.rows(Holding)
        assert holding.mib_ms == 2 * 600_000
        assert holding.is_settled
        assert holding.name == "weights"

    async def test_is_not_counted_before_there_were_prices(self, lab: Lab) -> None:
        lab.clock.wall_ms -= 1_100 * HOUR_MS
        await lab.store(MIB)
        lab.clock.wall_ms += 1_100 * HOUR_MS
        await lab.tick()
        assert sum(holding.mib_ms for holding in await lab.rows(Holding)) == 1_000 * HOUR_MS


class TestClock:
    @pytest.mark.parametrize("jump", [-5 * HOUR_MS, 5 * HOUR_MS, -90_000, 90_000])
    async def test_jump_changes_no_amount_of_memory(self, lab: Lab, jump: int) -> None:
        lab.begin("rep_a", 1_024)
        await lab.tick(HOUR_MS // 4)
        lab.clock.wall_ms += jump
        await lab.tick(HOUR_MS // 4)
        lab.clock.wall_ms -= jump
        await lab.tick(HOUR_MS // 4)
        lab.meter.end("rep_a")
        await lab.tick()
        assert await lab.charged() == 750_000
        await lab.check_ledger()

    async def test_jump_that_is_taken_back_changes_no_amount_of_storage(self, lab: Lab) -> None:
        await lab.store(1_024 * MIB)
        for jump in (2 * HOUR_MS, -2 * HOUR_MS, -3 * HOUR_MS, 3 * HOUR_MS):
            lab.clock.wall_ms += jump
            await lab.tick(HOUR_MS)
        holdings = await lab.rows(Holding)
        assert sum(holding.mib_ms for holding in holdings) == 1_024 * 4 * HOUR_MS
        await lab.check_ledger()


class TestExhausted:
    async def test_with_what_is_not_charged_yet(self, lab: Lab) -> None:
        lab.begin("rep_a", 1_024 * STARTING)
        await lab.tick(HOUR_MS - 1)
        assert lab.credits.exhausted() == frozenset()
        await lab.tick(1)
        assert lab.credits.exhausted() == {ACCOUNT}
        with pytest.raises(InsufficientCreditsError):
            lab.credits.check(ACCOUNT)
        lab.credits.check("acct_other")

    async def test_ends_with_a_grant_at_once(self, lab: Lab) -> None:
        lab.begin("rep_a", 1_024 * STARTING)
        await lab.tick(HOUR_MS)
        async with lab.database.transaction() as session:
            request = GrantCreate(amount_microcredits=1)
            await balances.grant(session, lab.credits, ACCOUNT, request)
            assert lab.credits.exhausted() == {ACCOUNT}, "it may yet be rolled back"
        assert lab.credits.exhausted() == frozenset()
        other = Lab(lab.database, lab.clock)
        await other.tick()
        assert other.credits.exhausted() == frozenset()

    async def test_from_the_beginning(self, lab: Lab) -> None:
        async with lab.database.transaction() as session:
            for table in (Transfer, Book):
                await session.execute(delete(table).where(table.account_id == "acct_other"))
        async with lab.database.transaction() as session:
            await balances.open_account(session, lab.credits, "acct_other", 0, db.now())
        assert lab.credits.exhausted() == {"acct_other"}
