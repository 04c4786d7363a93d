from datetime import datetime

from sqlalchemy import CursorResult, delete, select

from stoker.store.db import Session
from stoker.store.tables.console import ConsoleLink, ConsoleSession
from stoker.store.tables.keys import ApiKey

Table = type[ConsoleSession] | type[ConsoleLink]


async def make_room(session: Session, table: Table, key_id: str, most: int) -> None:
    """Deletes a key's oldest sessions or links, so that fewer than `most` remain."""
    newest = (
        select(table.token_sha256)
        .where(table.key_id == key_id)
        .order_by(table.created_at.desc(), table.token_sha256)
        .limit(most - 1)
    )
    await session.execute(
        delete(table).where(table.key_id == key_id, table.token_sha256.not_in(newest))
    )


async def take_link(
    session: Session, token_sha256: bytes, now: datetime
) -> tuple[str, bytes] | None:
    """Returns the public id of a link's key and the digest of its secret, and deletes the link.
    Later calls return None.
    """
    query = select(ApiKey.public_id, ConsoleLink.secret_sha256).join(
        ConsoleLink, ConsoleLink.key_id == ApiKey.id
    )
    row = (
        await session.execute(
            query.where(ConsoleLink.token_sha256 == token_sha256, ConsoleLink.expires_at > now)
        )
    ).one_or_none()
    # If two requests have read the link, only one of them deletes it.
    gone = await session.execute(
        delete(ConsoleLink).where(ConsoleLink.token_sha256 == token_sha256)
    )
    is_first = isinstance(gone, CursorResult) and gone.rowcount == 1
    return (row[0], row[1]) if row and is_first else None


async def end_session(session: Session, token_sha256: bytes) -> None:
    await session.execute(delete(ConsoleSession).where(ConsoleSession.token_sha256 == token_sha256))


async def forget_expired(session: Session, now: datetime) -> None:
    for table in (ConsoleSession, ConsoleLink):
        await session.execute(delete(table).where(table.expires_at <= now))
