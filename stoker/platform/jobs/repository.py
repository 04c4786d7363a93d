"""Database statements for job leases. All writes of a worker name its token."""

import functools
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    CompoundSelect,
    CursorResult,
    Select,
    String,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from stoker.store.changes import note
from stoker.store.db import Database
from stoker.store.tables.jobs import UNFINISHED, Job, JobStatus

Row = TypeVar("Row", bound=Job)


async def due(
    session: AsyncSession,
    table: type[Row],
    *,
    now: datetime,
    busy: Collection[str],
    held: Collection[str],
    account_id: str,
    limit: int,
) -> Sequence[Row]:
    """Returns an account's oldest jobs that wait or have an expired lease, for `lease` in this
    transaction.

    Args:
        busy: deployments with enough running jobs.
        held: tokens of the caller. If its own lease expired because it could not be renewed, the
            job is not due.
    """
    parameters = {"now": now, "busy": list(busy), "held": list(held)}
    place = {"account_id": account_id, "most": limit}
    return (await session.scalars(_due(table), parameters | place)).all()


async def due_accounts(
    session: AsyncSession,
    table: type[Job],
    *,
    now: datetime,
    busy: Collection[str],
    held: Collection[str],
) -> Sequence[str]:
    """Returns the accounts that have jobs for `due`."""
    parameters = {"now": now, "busy": list(busy), "held": list(held)}
    return (await session.scalars(_due_accounts(table), parameters)).all()


async def due_tables(
    database: Database, tables: tuple[type[Job], ...], *, now: datetime
) -> Sequence[str]:
    """Returns the names of the tables that have jobs for `due`."""
    return [row.name for row in await database.poll(_due_tables(tables), {"now": now})]


def name_of(table: type[Any]) -> str:
    """Returns the name of a table in the database."""
    return table.__tablename__


# Cached because building a statement takes longer than its execution in the database.
@functools.cache
def _due_tables(tables: tuple[type[Job], ...]) -> CompoundSelect[str]:
    names: list[Select[str]] = []
    for table in tables:
        # Not `in_`, whose values are expanded for each execution.
        is_unfinished = or_(*(table.status == status for status in UNFINISHED))
        now = _now(table)
        is_free = or_(table.lock_expires_at.is_(None), table.lock_expires_at <= now)
        is_time = or_(table.not_before.is_(None), table.not_before <= now)
        due_rows = select(table.id).where(is_unfinished, is_free, is_time)
        name: ColumnElement[str] = literal_column(f"'{name_of(table)}'", String)
        names.append(select(name.label("name")).where(due_rows.exists()))
    return union_all(*names)


@functools.cache
def _due(table: type[Row]) -> Select[Row]:
    return (
        select(table)
        .where(table.account_id == bindparam("account_id"), _is_due(table))
        .order_by(table.id)
        .limit(bindparam("most"))
        .with_for_update(skip_locked=True)
    )


@functools.cache
def _due_accounts(table: type[Job]) -> Select[str]:
    return select(table.account_id).where(_is_due(table)).distinct()


def _is_due(table: type[Job]) -> ColumnElement[bool]:
    now = _now(table)
    held_tokens: BindParameter[str] = bindparam("held", expanding=True)
    busy: BindParameter[str] = bindparam("busy", expanding=True)
    lost = and_(table.lock_expires_at <= now, table.lock_token.not_in(held_tokens))
    free = or_(table.lock_expires_at.is_(None), lost)
    due = or_(table.not_before.is_(None), table.not_before <= now)
    return and_(table.status.in_(UNFINISHED), free, due, table.deployment_id.not_in(busy))


def _now(table: type[Job]) -> BindParameter[datetime]:
    return bindparam("now", type_=table.lock_expires_at.type)


def lease(row: Job, *, token: str, until: datetime) -> None:
    row.status = JobStatus.IN_PROGRESS.value
    row.progress = 0.0
    row.tries += 1
    row.lock_token, row.lock_expires_at, row.not_before = token, until, None


async def renew(
    session: AsyncSession, row: Job, *, token: str, until: datetime, progress: float
) -> bool:
    """Extends a lease. Returns False if another worker holds the job."""
    return await _write(session, row, token, lock_expires_at=until, progress=progress)


async def held(session: AsyncSession, table: type[Job], tokens: Collection[str]) -> Collection[str]:
    """Returns the tokens among these that still hold a job's lease."""
    leased = await session.scalars(select(table.lock_token).where(table.lock_token.in_(tokens)))
    return {str(token) for token in leased}


async def hand_back(
    session: AsyncSession, row: Job, *, token: str, not_before: datetime | None = None
) -> bool:
    """Returns a job to the queue for the next worker.

    Args:
        not_before: earliest time of the next attempt, after the worker was lost. None makes the job
            due at once, and the attempt does not count.
    """
    lost = not_before is not None
    return await _write(
        session,
        row,
        token,
        status=JobStatus.QUEUED.value,
        progress=0.0,
        tries=row.tries if lost else row.tries - 1,
        losses=row.losses + lost,
        not_before=not_before,
        lock_token=None,
        lock_expires_at=None,
    )


async def park(
    session: AsyncSession, row: Job, *, token: str, status: str, values: Mapping[str, Any]
) -> bool:
    """Releases a job that waits for a caller, with its own status. Resets the counts of attempts
    and losses, because the work succeeded.
    """
    columns = {"status": status, "tries": 0, "losses": 0}
    return await _write(
        session, row, token, **{**values, **columns}, lock_token=None, lock_expires_at=None
    )


async def end(
    session: AsyncSession,
    row: Job,
    *,
    token: str,
    now: datetime,
    values: Mapping[str, Any] | None = None,
    error: tuple[str, str] | None = None,
) -> bool:
    """Completes a job, or fails it with a code and a message. Returns False if another worker holds
    the job.

    Args:
        values: additional columns of the job's kind.
    """
    code, message = error or (None, None)
    columns = {
        "status": (JobStatus.FAILED if error else JobStatus.COMPLETED).value,
        "progress": row.progress if error else 1.0,
        "error_code": code,
        "error_message": message,
        "completed_at": now,
    }
    return await _write(
        session, row, token, **{**(values or {}), **columns}, lock_token=None, lock_expires_at=None
    )


async def unfinished(session: AsyncSession, table: type[Job], deployment_id: str) -> int:
    """Returns the number of a deployment's jobs that wait or run."""
    statement = select(func.count()).where(
        table.deployment_id == deployment_id, table.status.in_(UNFINISHED)
    )
    return await session.scalar(statement) or 0


async def has_unfinished(session: AsyncSession, table: type[Job]) -> bool:
    """Returns True if any job waits or runs."""
    statement = select(table.id).where(table.status.in_(UNFINISHED)).limit(1)
    return await session.scalar(statement) is not None


async def queues(session: AsyncSession, table: type[Job]) -> dict[str, int]:
    """Returns the number of unfinished jobs of all deployments, by status."""
    statement = (
        select(table.status, func.count())
        .where(table.status.in_(UNFINISHED))
        .group_by(table.status)
    )
    return {row[0]: row[1] for row in await session.execute(statement)}


async def _write(session: AsyncSession, row: Job, token: str, **values: Any) -> bool:
    table = type(row)
    result = await session.execute(
        update(table)
        .where(table.id == row.id, table.lock_token == token)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    is_held = isinstance(result, CursorResult) and result.rowcount == 1
    if is_held:
        note(session, table, row.id, row.account_id, row)
    return is_held
