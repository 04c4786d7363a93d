from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.console import ConsoleLink, ConsoleSession
from stoker.store.tables.deployments import Deployment
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.servers import RateLevel


class KeyRow(NamedTuple):
    """Columns that are needed to check a key."""

    id: str
    public_id: str
    secret_sha256: bytes
    previous_sha256: bytes | None
    previous_expires_at: datetime | None
    scope: str
    account_id: str | None
    deployment_ids: list[str]
    expires_at: datetime | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    may_prioritize: bool


async def by_public_id(session: Session, public_id: str) -> KeyRow | None:
    # If the id is unknown, another key's row is read and no object is created from it. Otherwise
    # the duration would reveal a known id.
    live = select(ApiKey.public_id).where(
        ApiKey.public_id == public_id, ApiKey.revoked_at.is_(None)
    )
    anyone = select(func.min(ApiKey.public_id))
    row_id = func.coalesce(live.scalar_subquery(), anyone.scalar_subquery())
    query = select(*(getattr(ApiKey, name) for name in KeyRow._fields), ApiKey.revoked_at)
    fields = (await session.execute(query.where(ApiKey.public_id == row_id))).one_or_none()
    if fields is None:
        return None
    *row, revoked_at = fields
    key = KeyRow(*row)
    return key if key.public_id == public_id and revoked_at is None else None


async def get(
    session: Session, account_id: str | None, key_id: str, *, lock: bool = False
) -> ApiKey | None:
    """Returns a live key of the account. If `account_id` is None, of any account or operator.

    With `lock`, no other transaction can change it in the meantime.
    """
    query = select(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    if account_id is not None:
        query = query.where(ApiKey.account_id == account_id)
    # SQLite has no row locks, but a writing transaction has exclusive use of the database.
    return await session.scalar(query.with_for_update() if lock else query)


async def page(session: Session, account_id: str | None, query: PageQuery) -> Page[ApiKey]:
    statement = select(ApiKey).where(ApiKey.revoked_at.is_(None))
    if account_id is not None:
        statement = statement.where(ApiKey.account_id == account_id)
    return await fetch_page(session, statement, ApiKey.id, query)


async def account_exists(session: Session, account_id: str) -> bool:
    """Returns True if an account with this id exists and is not being deleted."""
    account = await session.get(Account, account_id)
    return account is not None and account.deleting_at is None


async def only_account(session: Session) -> Account | None:
    """Returns the account if exactly one exists."""
    query = select(Account).where(Account.deleting_at.is_(None)).limit(2)
    accounts = (await session.scalars(query)).all()
    return accounts[0] if len(accounts) == 1 else None


async def deployment_ids(session: Session, account_id: str, ids: list[str]) -> set[str]:
    """Returns the ids that belong to deployments of the account."""
    return set(
        await session.scalars(
            select(Deployment.id).where(Deployment.account_id == account_id, Deployment.id.in_(ids))
        )
    )


async def live_of(session: Session, account_id: str) -> Sequence[ApiKey]:
    """Returns all keys of an account that are not revoked."""
    query = select(ApiKey).where(ApiKey.account_id == account_id, ApiKey.revoked_at.is_(None))
    return (await session.scalars(query)).all()


async def operator_exists(session: Session) -> bool:
    return (
        await session.scalar(
            select(ApiKey.id)
            .where(ApiKey.scope == "operator", ApiKey.revoked_at.is_(None))
            .limit(1)
        )
        is not None
    )


async def touch(session: Session, used: Mapping[str, datetime]) -> None:
    # A fixed order prevents deadlocks between servers that update the same keys.
    for key_id, moment in sorted(used.items()):
        await session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=moment))


async def forget_revoked(session: Session, before: datetime) -> None:
    await session.execute(delete(ApiKey).where(ApiKey.revoked_at < before))


class SessionRow(NamedTuple):
    """Columns that are needed to check a browser session."""

    token_sha256: bytes
    public_id: str
    secret_sha256: bytes
    expires_at: datetime


async def browser_session(session: Session, token_sha256: bytes) -> SessionRow | None:
    query = (
        select(
            ConsoleSession.token_sha256,
            ApiKey.public_id,
            ConsoleSession.secret_sha256,
            ConsoleSession.expires_at,
        )
        .join(ApiKey, ApiKey.id == ConsoleSession.key_id)
        .where(ConsoleSession.token_sha256 == token_sha256)
    )
    row = (await session.execute(query)).one_or_none()
    return SessionRow(*row) if row else None


async def sign_out(session: Session, key_id: str) -> Sequence[bytes]:
    """Ends all browser sessions and sign-in links of a key. Returns the digests of the sessions'
    tokens.
    """
    await session.execute(delete(ConsoleLink).where(ConsoleLink.key_id == key_id))
    query = delete(ConsoleSession).where(ConsoleSession.key_id == key_id)
    return (await session.scalars(query.returning(ConsoleSession.token_sha256))).all()


# --- shared rate limits, on PostgreSQL alone ---


async def clock_s(session: Session) -> float:
    """Returns the time of the database's clock in seconds since 1970."""
    seconds = func.extract("epoch", func.clock_timestamp())
    return float(await session.scalar(select(seconds)) or 0.0)


async def locked_levels(
    session: Session, full: Mapping[tuple[str, str], float], now: float
) -> dict[tuple[str, str], RateLevel]:
    """Returns the rows of the levels, locked in a fixed order. A new level is full.

    Args:
        full: maps each level, by its key's id and its limit, to the units of a full level.
        now: seconds since 1970.
    """
    names = sorted(full)
    begun = [
        {"key_id": name[0], "what": name[1], "level": full[name], "counted_at": now}
        for name in names
    ]
    await session.execute(insert(RateLevel).values(begun).on_conflict_do_nothing())
    statement = (
        select(RateLevel)
        .where(tuple_(RateLevel.key_id, RateLevel.what).in_(names))
        .order_by(RateLevel.key_id, RateLevel.what)
        .with_for_update()
    )
    return {(row.key_id, row.what): row for row in await session.scalars(statement)}


async def delete_rested_levels(session: Session, rested_s: float) -> None:
    """Deletes the levels that were last counted more than `rested_s` seconds ago."""
    now = func.extract("epoch", func.clock_timestamp())
    await session.execute(delete(RateLevel).where(RateLevel.counted_at < now - rested_s))
