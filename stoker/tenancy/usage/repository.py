"""Database statements for usage and prices."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    case,
    cast,
    func,
    literal,
    null,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute

from stoker.base.fairness import Tier
from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.artifacts import Artifact, Upload
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.usage import (
    MEMORY_KINDS,
    Book,
    Holding,
    Kind,
    Price,
    Transfer,
    UsageCount,
)
from stoker.tenancy.usage.grouping import HOURS_A_DAY, TIMES, Group, Grouping, Key

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
HELD = (
    "memory_mib_ms",
    "memory_microcredits",
    "flex_mib_ms",
    "flex_microcredits",
    "storage_mib_ms",
    "storage_microcredits",
)
SUMS = (*HELD, *(count.key for count in COUNTS))
_AT_ONCE = 5_000
"""Maximum number of values per statement. Databases accept some tens of thousands."""


@dataclass(frozen=True, kw_only=True)
class UsageSpan:
    """Account, hours and deployments of the requested usage."""

    account_id: str
    first: int
    """First hour, counted in hours since 1970 in UTC."""
    end: int
    """Hour after the last one."""
    deployment_ids: Collection[str] = ()
    """Ids of the requested deployments. Empty means all usage, including usage without a
    deployment.
    """

    def of(self, table: type[Holding] | type[UsageCount]) -> ColumnElement[bool]:
        condition = (
            (table.account_id == self.account_id)
            & (table.hour >= self.first)
            & (table.hour < self.end)
        )
        if not self.deployment_ids:
            return condition
        return condition & table.deployment_id.in_(self.deployment_ids)


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
    """Uncharged part of an account's holdings with the same kind and price."""

    account_id: str
    ledger: int
    carry: int
    kind: str | None
    """Kind of the holdings. None if nothing is uncharged."""
    price_version: int | None
    mib_ms: int


# --- metered usage ---


async def account_exists(session: Session, account_id: str) -> bool:
    """Returns True if an account with this id exists and is not being deleted."""
    account = await session.get(Account, account_id)
    return account is not None and account.deleting_at is None


async def accounts_of(session: Session, ids: Collection[str]) -> set[str]:
    """Returns the ids of existing accounts that are not being deleted."""
    account_ids: set[str] = set()
    for some in _parts(sorted(ids)):
        known = select(Account.id).where(Account.id.in_(some), Account.deleting_at.is_(None))
        account_ids |= set(await session.scalars(known))
    return account_ids


async def holdings(
    session: Session, subjects: Collection[str], hours: Collection[int]
) -> dict[tuple[str, int], Holding]:
    rows = await session.scalars(
        select(Holding).where(Holding.subject_id.in_(subjects), Holding.hour.in_(hours))
    )
    return {(row.subject_id, row.hour): row for row in rows}


async def unsettled(session: Session, span: UsageSpan | None = None) -> Sequence[Holding]:
    """Returns holdings that are not final or not fully charged, oldest first."""
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


async def counts(session: Session, identifiers: Sequence[str]) -> dict[str, UsageCount]:
    rows_by_id: dict[str, UsageCount] = {}
    for some in _parts(identifiers):
        rows = await session.scalars(select(UsageCount).where(UsageCount.id.in_(some)))
        rows_by_id |= {row.id: row for row in rows}
    return rows_by_id


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), _AT_ONCE):
        yield names[first : first + _AT_ONCE]


async def key_ids(session: Session, public_ids: Sequence[str]) -> dict[str, str]:
    """Maps public ids of keys to their ids. Omits deleted keys."""
    ids: dict[str, str] = {}
    for some in _parts(public_ids):
        rows = await session.execute(
            select(ApiKey.public_id, ApiKey.id).where(ApiKey.public_id.in_(some))
        )
        ids |= {row.public_id: row.id for row in rows}
    return ids


# --- reports ---


async def sums(
    session: Session, span: UsageSpan, grouping: Grouping, begin: Key | None, limit: int
) -> Sequence[Any]:
    """Returns the sorted rows of a report: each group's value, a name, a deployment, and the sums
    of `SUMS`.

    Args:
        begin: key of the row after which the page starts.
    """
    both = union_all(_held(span, grouping), _counted(span, grouping)).subquery()
    groups = [both.c[group] for group in grouping.groups]
    # Databases differ in the sort position of nulls.
    places = [
        column
        for group in groups
        for column in ((group,) if _is_time(group) else (_is_none(group), _coalesced(group)))
    ]
    statement = (
        select(
            *groups,
            func.max(both.c.name),
            func.max(both.c.deployment_id),
            *(func.sum(both.c[name]) for name in SUMS),
        )
        .group_by(*groups)
        .order_by(*places)
        .limit(limit)
    )
    if begin is not None:
        after = [
            value
            for group, group_value in zip(groups, begin, strict=True)
            for value in (
                (group_value,) if _is_time(group) else (int(group_value is None), group_value or "")
            )
        ]
        statement = statement.where(tuple_(*places) > tuple_(*map(literal, after)))
    return (await session.execute(statement)).all()


async def total(session: Session, span: UsageSpan) -> Sequence[Any]:
    """Returns the totals of `SUMS`. Each is None if the span has no rows."""
    grouping = Grouping(())
    both = union_all(_held(span, grouping), _counted(span, grouping)).subquery()
    return (await session.execute(select(*(func.sum(both.c[name]) for name in SUMS)))).one()


def _held(span: UsageSpan, grouping: Grouping) -> Select[*tuple[Any, ...]]:
    def of(column: InstrumentedAttribute[int], *kinds: Kind) -> ColumnElement[int]:
        return case((Holding.kind.in_(kinds), column), else_=0)

    columns: list[Any] = [
        *_keys(Holding, grouping),
        Holding.name.label("name"),
        Holding.deployment_id.label("deployment_id"),
        of(Holding.mib_ms, *MEMORY_KINDS).label("memory_mib_ms"),
        of(Holding.charged_microcredits, *MEMORY_KINDS).label("memory_microcredits"),
        of(Holding.mib_ms, Kind.FLEX).label("flex_mib_ms"),
        of(Holding.charged_microcredits, Kind.FLEX).label("flex_microcredits"),
        of(Holding.mib_ms, Kind.STORAGE).label("storage_mib_ms"),
        of(Holding.charged_microcredits, Kind.STORAGE).label("storage_microcredits"),
        *(literal(0).label(count.key) for count in COUNTS),
    ]
    return select(*columns).where(span.of(Holding))


def _counted(span: UsageSpan, grouping: Grouping) -> Select[*tuple[Any, ...]]:
    columns: list[Any] = [
        *_keys(UsageCount, grouping),
        UsageCount.model.label("name"),
        UsageCount.deployment_id.label("deployment_id"),
        *(literal(0).label(name) for name in HELD),
        *(count.label(count.key) for count in COUNTS),
    ]
    return select(*columns).where(span.of(UsageCount))


def _keys(table: type[Holding] | type[UsageCount], grouping: Grouping) -> list[Any]:
    # Holdings belong to a deployment, not to the key that calls it.
    is_of_calls = table is UsageCount
    key = UsageCount.key_id if is_of_calls else cast(null(), String(40))
    is_flex = (Holding.kind == Kind.FLEX, Tier.FLEX.value)
    tier = UsageCount.tier if is_of_calls else case(is_flex, else_=cast(null(), String(16)))
    columns: dict[Group, Any] = {
        "deployment": table.deployment_id,
        "version": table.version_id,
        "day": table.hour // HOURS_A_DAY,
        "hour": table.hour,
        "key": key,
        "tier": tier,
    }
    return [columns[group].label(group) for group in grouping.groups]


def _is_time(group: ColumnElement[Any]) -> bool:
    return group.key in TIMES


def _is_none(group: ColumnElement[Any]) -> ColumnElement[int]:
    return case((group.is_(None), 1), else_=0)


def _coalesced(group: ColumnElement[Any]) -> ColumnElement[str]:
    return func.coalesce(group, "")


async def key_names(session: Session, account_id: str, ids: Collection[str]) -> dict[str, str]:
    """Returns the names of an account's keys by id. Omits keys that have no name or were
    deleted.
    """
    rows = await session.execute(
        select(ApiKey.id, ApiKey.name).where(
            ApiKey.id.in_(ids), ApiKey.account_id == account_id, ApiKey.name.is_not(None)
        )
    )
    return {key_id: name for key_id, name in rows if name}


async def holding_page(
    session: Session, span: UsageSpan, kinds: Collection[Kind], query: PageQuery
) -> Page[Holding]:
    statement = select(Holding).where(span.of(Holding), Holding.kind.in_(kinds))
    return await fetch_page(session, statement, Holding.id, query)


async def count_page(session: Session, span: UsageSpan, query: PageQuery) -> Page[UsageCount]:
    return await fetch_page(
        session, select(UsageCount).where(span.of(UsageCount)), UsageCount.id, query
    )


# --- prices and credits ---


async def prices(session: Session) -> list[Price]:
    """Returns all versions, oldest first."""
    return list(await session.scalars(select(Price).order_by(Price.version)))


async def price_page(session: Session, query: PageQuery) -> Page[Price]:
    return await fetch_page(session, select(Price), Price.id, query)


async def transfer_page(session: Session, account_id: str, query: PageQuery) -> Page[Transfer]:
    statement = select(Transfer).where(Transfer.account_id == account_id)
    return await fetch_page(session, statement, Transfer.id, query)


async def accounts_without_book(session: Session) -> Sequence[str]:
    with_book = select(Book.account_id).where(Book.account_id.is_not(None))
    return (await session.scalars(select(Account.id).where(Account.id.not_in(with_book)))).all()


async def due(session: Session, account_id: str | None = None) -> list[Due]:
    """Returns the balances and uncharged usage of one account or of all.

    Uses a single statement, so that a concurrent charge appears on both sides or on neither.
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
