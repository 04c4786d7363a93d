"""A ledger on a real database, with clocks that are passed in."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, func, select

from stoker.base.ids import Prefix, new_id
from stoker.runtime.listening import OK, Served
from stoker.runtime.metering import HOUR_MS, MIB, Meter
from stoker.store.db import Database
from stoker.store.tables.accounts import Account
from stoker.store.tables.artifacts import Artifact, Upload
from stoker.store.tables.usage import Book, Holding, Price, Transfer, UsageCount
from stoker.tenancy.usage.balances import CreditCheck
from stoker.tenancy.usage.counts import Counts
from stoker.tenancy.usage.metering import Metering

HOUR = 490_000
"""Start of the tests' clocks in hours since 1970."""
START_MS = HOUR * HOUR_MS
STARTING = 1_000
ACCOUNT = "acct_usage"


@dataclass
class Clock:
    """A monotonic and a wall clock that advance together until a test sets one of them."""

    monotonic_ms: int = 5_000
    wall_ms: int = START_MS

    def pass_by(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms


class Lab:
    """Metering of one server. Several may share a database and a clock."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database = database
        self.clock = clock or Clock()
        self.meter = Meter(lambda: self.clock.monotonic_ms, lambda: self.clock.wall_ms)
        self.credits = CreditCheck()
        self.counts = Counts(lambda: self.clock.wall_ms)
        self.metering = Metering(
            database,
            self.meter,
            self.credits,
            self.counts,
            starting_credits=STARTING,
            wall_ms=lambda: self.clock.wall_ms,
        )

    async def tick(self, ms: int = 0) -> None:
        self.clock.pass_by(ms)
        await self.metering.tick()

    def begin(self, worker: str, mib: int, account: str = ACCOUNT, deployment: str = "dep_1"):
        self.meter.begin(
            worker,
            account_id=account,
            deployment_id=deployment,
            model=f"model of {deployment}",
            memory_bytes=mib * MIB,
        )

    def serve(self, deployment: str = "dep_1", outcome: str = OK, **counts: int) -> None:
        self.counts.served(
            Served(
                account_id=ACCOUNT,
                deployment_id=deployment,
                model=f"model of {deployment}",
                outcome=outcome,
                waited_s=0.0,
                seconds=0.1,
                counts=counts,
            )
        )

    async def store(self, size_bytes: int, account: str = ACCOUNT) -> str:
        """Adds an artifact with files that go live now, and returns its id."""
        moment = datetime.fromtimestamp(self.clock.wall_ms / 1000, UTC)
        artifact_id, upload_id = new_id(Prefix.ARTIFACT), new_id(Prefix.UPLOAD)
        async with self.database.transaction() as session:
            session.add(
                Artifact(
                    id=artifact_id,
                    account_id=account,
                    display_name="weights",
                    status="ready",
                    size_bytes=size_bytes,
                    live_upload_id=upload_id,
                    created_at=moment,
                    updated_at=moment,
                )
            )
            await session.flush()
            session.add(
                Upload(
                    id=upload_id,
                    artifact_id=artifact_id,
                    status="ready",
                    part_size=MIB,
                    files_begun=1,
                    created_at=moment,
                    expires_at=moment,
                    completed_at=moment,
                )
            )
        return artifact_id

    async def remove(self, artifact_id: str) -> None:
        async with self.database.transaction() as session:
            await session.execute(delete(Artifact).where(Artifact.id == artifact_id))

    async def rows(self, table: Any) -> list[Any]:
        async with self.database.reading() as session:
            return list(await session.scalars(select(table).order_by(table.id)))

    async def charged(self, account: str = ACCOUNT) -> int:
        """Returns the amount that the ledger charged to an account, in micro-credits."""
        return sum(
            transfer.microcredits
            for transfer in await self.rows(Transfer)
            if transfer.account_id == account and transfer.kind in ("memory", "flex", "storage")
        )

    async def check_ledger(self) -> None:
        """Asserts that every book equals the sum of its transfers and that all books add up to
        zero.
        """
        expected: dict[str, int] = {}
        for moved in await self.rows(Transfer):
            assert moved.microcredits > 0
            expected[moved.source] = expected.get(moved.source, 0) - moved.microcredits
            expected[moved.target] = expected.get(moved.target, 0) + moved.microcredits
        async with self.database.reading() as session:
            books = {book.name: book.microcredits for book in await session.scalars(select(Book))}
            charged = await session.scalar(select(func.sum(Holding.charged_microcredits)))
        assert {name: amount for name, amount in books.items() if amount} == {
            name: amount for name, amount in expected.items() if amount
        }
        assert sum(books.values()) == 0
        income = books.get("operator:memory", 0) + books.get("operator:storage", 0)
        assert income == int(charged or 0)


async def clear(database: Database) -> None:
    """Resets the database to its accounts and a first price, which starts 1000 hours before
    `HOUR`.
    """
    async with database.transaction() as session:
        for table in (Transfer, Book, Holding, UsageCount, Upload, Artifact, Price):
            await session.execute(delete(table))
        session.add(Book(name="operator:memory", microcredits=0, carry=0))
        session.add(price(1, hour=HOUR - 1000))
        for account in (ACCOUNT, "acct_other"):
            if await session.get(Account, account) is None:
                session.add(Account(id=account, name=account, created_at=datetime.now(UTC)))


def price(
    version: int,
    *,
    hour: int,
    memory: int = 1_000_000,
    flex: int | None = 500_000,
    storage: int = 1_000_000,
) -> Price:
    return Price(
        id=f"price_{version}",
        version=version,
        memory=memory,
        flex=flex,
        storage=storage,
        hour=hour,
        created_at=datetime.fromtimestamp(hour * 3600, UTC),
    )
