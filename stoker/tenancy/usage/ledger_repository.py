"""Database statements for the ledger."""

from collections.abc import Sequence

from sqlalchemy import Row, delete, func, select

from stoker.store.db import Session
from stoker.store.tables.usage import Book, Transfer


async def lock_book(session: Session, name: str) -> None:
    """Locks a book's row until the transaction ends. SQLite has no row locks."""
    await session.execute(select(Book.name).where(Book.name == name).with_for_update())


async def sums_of_transfers(session: Session, account_id: str) -> Sequence[Row[str, str, str, int]]:
    """Returns the sums of an account's transfers: kind, source, target and microcredits."""
    columns = (Transfer.kind, Transfer.source, Transfer.target)
    statement = select(*columns, func.sum(Transfer.microcredits))
    statement = statement.where(Transfer.account_id == account_id).group_by(*columns)
    return (await session.execute(statement)).all()


async def delete_transfers(session: Session, account_id: str) -> None:
    """Deletes the transfers of an account."""
    await session.execute(delete(Transfer).where(Transfer.account_id == account_id))
