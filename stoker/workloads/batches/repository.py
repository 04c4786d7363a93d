from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, delete, or_, select, update

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.changes import note
from stoker.store.db import Session
from stoker.store.tables.batches import Batch, BatchPart, BatchState
from stoker.store.tables.jobs import UNFINISHED
from stoker.store.tables.usage import UsageCount
from stoker.tenancy.keys.auth import Reach


def _within(reach: Reach) -> ColumnElement[bool]:
    condition = Batch.account_id == reach.account_id
    if reach.deployment_ids is None:
        return condition
    # Before its validation, a batch has no deployment.
    return condition & or_(
        Batch.deployment_id.in_(reach.deployment_ids), Batch.key_id == reach.key_id
    )


async def get(session: Session, reach: Reach, batch_id: str, *, lock: bool = False) -> Batch | None:
    statement = select(Batch).where(Batch.id == batch_id, _within(reach))
    return await session.scalar(statement.with_for_update() if lock else statement)


async def these(session: Session, ids: Collection[str]) -> Sequence[Batch]:
    """Returns the existing batches among these ids."""
    return (await session.scalars(select(Batch).where(Batch.id.in_(ids)))).all()


async def page(session: Session, reach: Reach, query: PageQuery) -> Page[Batch]:
    return await fetch_page(session, select(Batch).where(_within(reach)), Batch.id, query)


async def cancelling_at(session: Session, batch_id: str) -> datetime | None:
    """Returns the time at which a batch's cancellation was requested."""
    return await session.scalar(select(Batch.cancelling_at).where(Batch.id == batch_id))


async def write(session: Session, row: Batch, **values: Any) -> bool:
    """Writes columns of a batch for the holder of its lease. Returns False if another worker holds
    it.
    """
    result = await session.execute(
        update(Batch)
        .where(Batch.id == row.id, Batch.lock_token == row.lock_token)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    is_held = isinstance(result, CursorResult) and result.rowcount == 1
    if is_held:
        note(session, Batch, row.id, row.account_id, row)
    return is_held


async def parts(session: Session, batch_id: str) -> Sequence[BatchPart]:
    """Returns the parts of a batch, oldest first."""
    statement = select(BatchPart).where(BatchPart.batch_id == batch_id)
    return (await session.scalars(statement.order_by(BatchPart.number))).all()


async def has_part(session: Session, part_id: str) -> bool:
    return await session.get(BatchPart, part_id) is not None


async def known_parts(session: Session, ids: Collection[str]) -> set[str]:
    return set(await session.scalars(select(BatchPart.id).where(BatchPart.id.in_(ids))))


async def delete_parts(session: Session, batch_id: str) -> None:
    await session.execute(delete(BatchPart).where(BatchPart.batch_id == batch_id))


async def usage_rows(session: Session, ids: Collection[str]) -> dict[str, UsageCount]:
    statement = select(UsageCount).where(UsageCount.id.in_(ids))
    return {row.id: row for row in await session.scalars(statement)}


async def forget_ended(session: Session, before: datetime) -> None:
    """Deletes the batches that ended before a moment."""
    ended = Batch.status.not_in(UNFINISHED)
    await session.execute(delete(Batch).where(Batch.completed_at < before, ended))


async def set_failed(session: Session, batch_id: str, errors: list[dict[str, Any]]) -> None:
    """Sets the state of a batch that its runner has failed."""
    await session.execute(
        update(Batch)
        .where(Batch.id == batch_id)
        .values(state=BatchState.FAILED.value, errors=errors)
        .execution_options(synchronize_session=False)
    )
