"""The erasure of accounts knows each table, and no table keeps a word of an account."""

from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Table,
    Uuid,
    delete,
    func,
    insert,
    select,
)

from stoker.server.erasure import repository
from stoker.store import db
from stoker.store.db import Base, Database
from stoker.store.tables import metadata
from stoker.store.tables.accounts import Account
from stoker.store.tables.idempotency import IdempotencyRecord
from stoker.store.tables.servers import RateLevel
from stoker.store.tables.usage import Book, Transfer, TransferKind
from stoker.tenancy.usage.ledger import CLOSED, Ledger

KNOWN = {table.__tablename__: table for table in metadata.TABLES}


def test_every_table_is_erased_or_kept_for_a_reason() -> None:
    """Each table is either erased or kept. A new table must be added to
    `stoker/server/erasure/repository.py`.
    """
    erased, kept = set(repository.owned_by("acct_1")), set(repository.KEPT)
    assert erased | kept == set(metadata.TABLES)
    assert not erased & kept
    assert set(KNOWN) == set(Base.metadata.tables)


@pytest.mark.parametrize("table", repository.KEPT, ids=lambda table: table.__tablename__)
def test_what_is_kept_names_no_account(table: type[Base]) -> None:
    of_accounts = {owned.__tablename__ for owned in repository.owned_by("acct_1")}
    assert "account_id" not in table.__table__.c
    assert not {key.column.table.name for key in table.__table__.foreign_keys} & of_accounts


def value(column: Column[Any], word: str) -> Any:
    """Returns a value of a column's type, with the word if it fits."""
    kind = getattr(column.type, "impl", column.type)
    if isinstance(kind, JSON):
        return {"said": word}
    if isinstance(kind, LargeBinary):
        return word.encode()
    if isinstance(kind, Boolean):
        return False
    if isinstance(kind, Integer | Float):
        return 1
    if isinstance(kind, DateTime | Uuid):
        return db.now()
    length = getattr(kind, "length", None) or 40
    return f"{word}-{column.table.name}-{column.name}"[:length]


def row(table: Table, word: str, made: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns a row of an account. Its foreign keys refer to the account's rows."""
    values: dict[str, Any] = {}
    for column in table.columns:
        target = next((key.column for key in column.foreign_keys), None)
        if target is not None and target.table is not table:
            values[column.name] = made[target.table.name][target.name]
        elif target is None:
            values[column.name] = value(column, word)
    return values


async def fill(database: Database, word: str) -> dict[str, dict[str, Any]]:
    """Inserts a row into every table with rows of accounts, for an account that is named by a
    word.
    """
    made: dict[str, dict[str, Any]] = {}
    of_accounts = {table.__table__ for table in repository.owned_by("x")}
    async with database.transaction() as session:
        for table in Base.metadata.sorted_tables:
            if table not in of_accounts:
                continue
            made[table.name] = row(table, word, made)
            if table.name == RateLevel.__tablename__:
                made[table.name]["key_id"] = f"{word}-api_keys-id"
            if table.name == IdempotencyRecord.__tablename__:
                made[table.name]["account_id"] = f"{word}-accounts-id"
            if table.name == Book.__tablename__:
                made[table.name] |= {"name": f"account:{word}-accounts-id", "microcredits": 0}
            if table.name == Transfer.__tablename__:
                sides = {"source": "operator:grants", "target": f"account:{word}-accounts-id"}
                made[table.name] |= {**sides, "kind": "grant"}
            await session.execute(insert(table).values(made[table.name]))
    return made


async def everything(database: Database) -> dict[str, list[str]]:
    """Returns all rows of all tables as text."""
    async with database.reading() as session:
        return {
            table.name: sorted(
                str(tuple(record)) for record in await session.execute(select(table))
            )
            for table in Base.metadata.sorted_tables
        }


async def erase(database: Database, account_id: str) -> None:
    async with database.transaction() as session:
        ledger = await Ledger.open(session)
        await ledger.close(account_id, db.now())
        await repository.erase_all(session, account_id)


async def test_no_row_is_left(migrated: Database) -> None:
    made = await fill(migrated, "canary")
    await fill(migrated, "other")
    before = await everything(migrated)
    assert sum("canary" in str(rows) for rows in before.values()) == len(made)
    await erase(migrated, made["accounts"]["id"])
    after = await everything(migrated)
    assert {name: rows for name, rows in after.items() if "canary" in str(rows)} == {}
    for name, rows in before.items():
        other_rows = [record for record in rows if "other" in record]
        assert [record for record in after[name] if "other" in record] == other_rows, name
    # The tests of PostgreSQL share a database.
    await erase(migrated, "other-accounts-id")
    async with migrated.transaction() as session:
        await session.execute(delete(Transfer))
        await session.execute(delete(Book))


async def test_books_balance(migrated: Database) -> None:
    """The sums of grants and charges are kept, without the account's name."""
    async with migrated.transaction() as session:
        account = Account(id="acct_canary", name="canary", quotas={}, created_at=db.now())
        session.add(account)
        await session.flush()
        ledger = await Ledger.open(session)
        holder, moves = "account:acct_canary", (("grant", 500), ("grant", 70), ("memory", 120))
        for number, (kind, amount) in enumerate(moves):
            source, target = (
                ("operator:grants", holder) if kind == "grant" else (holder, "operator:memory")
            )
            await ledger.transfer(
                key=f"canary {number}",
                kind=TransferKind(kind),
                source=source,
                target=target,
                microcredits=amount,
                account_id=account.id,
                now=db.now(),
                note="for the canary",
            )
    await erase(migrated, "acct_canary")
    async with migrated.reading() as session:
        moved = (await session.scalars(select(Transfer).where(Transfer.account_id.is_(None)))).all()
        totals = {(move.kind, move.source, move.target, move.microcredits) for move in moved}
        assert ("grant", "operator:grants", CLOSED, 570) in totals
        assert ("memory", CLOSED, "operator:memory", 120) in totals
        for book in await session.scalars(select(Book)):
            sums = [
                await session.scalar(
                    select(func.sum(Transfer.microcredits)).where(side == book.name)
                )
                for side in (Transfer.target, Transfer.source)
            ]
            assert book.microcredits == int(sums[0] or 0) - int(sums[1] or 0), book.name
    assert "canary" not in str(await everything(migrated))
