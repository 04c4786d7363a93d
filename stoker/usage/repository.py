"""Every statement on what was used, and on prices."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select

from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.artifacts import Artifact, Upload
from stoker.store.tables.usage import Book, Holding, Kind, Price, Transfer, UsageCount
from stoker.web.lists import Page, PageQuery, fetch_page

COUNTS = (
    UsageCount.requests,
    UsageCount.errors,
    UsageCount.mirrored,
    UsageCount.input_tokens,
    UsageCount.output_tokens,
    UsageCount.images,
    UsageCount.audio_ms,
    UsageCount.video_ms,
)


@dataclass(frozen=True, kw_only=True)
class Span:
    """Whose usage is asked for, and when."""

    account_id: str
    first: int
    """Hours since 1970 in UTC."""
    end: int
    """The first hour that does not belong to it."""
    deployment_id: str | None = None
    """None: all, and what belongs to none."""

    def of(self, table: type[Holding] | type[UsageCount]) -> ColumnElement[bool]:
        found = (
            (table.account_id == self.account_id)
            & (table.hour >= self.first)
            & (table.hour < self.end)
        )
        if self.deployment_id is None:
            return found
        return found & (table.deployment_id == self.deployment_id)


@dataclass(frozen=True)
class Stored:
    """An artifact with live files."""

    id: str
    account_id: str
    name: str
    size_bytes: int
    since: datetime


@dataclass(frozen=True)
class Due:
    """What of an account's holdings was not charged yet, of one kind and price."""

    account_id: str
    ledger: int
    carry: int
    kind: str | None
    """None: there is nothing."""
    price_version: int | None
    mib_ms: int


# --- what is metered ---


async def account_exists(session: Session, account_id: str) -> bool:
    return await session.get(Account, account_id) is not None


async def holdings(
    session: Session, subjects: Collection[str], hours: Collection[int]
) -> dict[tuple[str, int], Holding]:
    rows = await session.scalars(
        select(Holding).where(Holding.subject_id.in_(subjects), Holding.hour.in_(hours))
    )
    return {(row.subject_id, row.hour): row for row in rows}


async def unsettled(session: Session, span: Span | None = None) -> Sequence[Holding]:
    """What is not final or not charged, the oldest first."""
    statement = select(Holding).where(Holding.is_settled.is_(False))
    if span:
        statement = statement.where(span.of(Holding))
    return (await session.scalars(statement.order_by(Holding.id))).all()


async def stored(session: Session) -> list[Stored]:
    rows = await session.execute(
        select(
            Artifact.id,
            Artifact.account_id,
            Artifact.display_name,
            Artifact.size_bytes,
            func.coalesce(Upload.completed_at, Artifact.updated_at),
        ).join(Upload, Upload.id == Artifact.live_upload_id)
    )
    return [Stored(*row) for row in rows]


async def counts(session: Session, identifiers: Collection[str]) -> dict[str, UsageCount]:
    rows = await session.scalars(select(UsageCount).where(UsageCount.id.in_(identifiers)))
    return {row.id: row for row in rows}


# --- what is reported ---


async def sums(session: Session, span: Span, key: str) -> Sequence[Any]:
    """By a column: (key, kind, a name, a deployment, MiB-ms, micro-credits charged)."""
    column = getattr(Holding, key)
    rows = await session.execute(
        select(
            column,
            Holding.kind,
            func.max(Holding.name),
            func.max(Holding.deployment_id),
            func.sum(Holding.mib_ms),
            func.sum(Holding.charged_microcredits),
        )
        .where(span.of(Holding))
        .group_by(column, Holding.kind)
    )
    return rows.all()


async def count_sums(session: Session, span: Span, key: str) -> Sequence[Any]:
    """By a column: (key, a model's name, a deployment, the sums of `COUNTS`)."""
    column = getattr(UsageCount, key)
    rows = await session.execute(
        select(
            column,
            func.max(UsageCount.model),
            func.max(UsageCount.deployment_id),
            *(func.sum(count) for count in COUNTS),
        )
        .where(span.of(UsageCount))
        .group_by(column)
    )
    return rows.all()


async def holding_page(
    session: Session, span: Span, kinds: Collection[Kind], query: PageQuery
) -> Page[Holding]:
    statement = select(Holding).where(span.of(Holding), Holding.kind.in_(kinds))
    return await fetch_page(session, statement, Holding.id, query)


async def count_page(session: Session, span: Span, query: PageQuery) -> Page[UsageCount]:
    return await fetch_page(
        session, select(UsageCount).where(span.of(UsageCount)), UsageCount.id, query
    )


# --- prices and credits ---


async def prices(session: Session) -> list[Price]:
    """All versions, the first first."""
    return list(await session.scalars(select(Price).order_by(Price.version)))


async def price_page(session: Session, query: PageQuery) -> Page[Price]:
    return await fetch_page(session, select(Price), Price.id, query)


async def transfer_page(session: Session, account_id: str, query: PageQuery) -> Page[Transfer]:
    statement = select(Transfer).where(Transfer.account_id == account_id)
    return await fetch_page(session, statement, Transfer.id, query)


async def accounts_without_book(session: Session) -> Sequence[str]:
    own = select(Book.account_id).where(Book.account_id.is_not(None))
    return (await session.scalars(select(Account.id).where(Account.id.not_in(own)))).all()


async def due(session: Session, account_id: str | None = None) -> list[Due]:
    """Balances with what is not charged yet, of one account or of all.

    One statement, so that a charge which commits meanwhile is seen on both sides or on neither.
    """
    uncharged = (
        select(
            Holding.account_id,
            Holding.kind,
            Holding.price_version,
            func.sum(Holding.mib_ms - Holding.charged_mib_ms).label("mib_ms"),
        )
        .where(Holding.is_settled.is_(False))
        .group_by(Holding.account_id, Holding.kind, Holding.price_version)
        .subquery()
    )
    statement = (
        select(
            Book.account_id,
            Book.microcredits,
            Book.carry,
            uncharged.c.kind,
            uncharged.c.price_version,
            func.coalesce(uncharged.c.mib_ms, 0),
        )
        .outerjoin(uncharged, uncharged.c.account_id == Book.account_id)
        .where(Book.account_id.is_not(None))
    )
    if account_id:
        statement = statement.where(Book.account_id == account_id)
    rows = await session.execute(statement)
    return [
        Due(str(account), amount, carry, kind, version, int(mib_ms))
        for account, amount, carry, kind, version, mib_ms in rows
    ]
