from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.trials import Trial


async def get(session: Session, deployment_id: str, trial_id: str) -> Trial | None:
    statement = select(Trial).where(Trial.id == trial_id, Trial.deployment_id == deployment_id)
    return await session.scalar(statement)


async def page(session: Session, deployment_id: str, query: PageQuery) -> Page[Trial]:
    statement = select(Trial).where(Trial.deployment_id == deployment_id)
    return await fetch_page(session, statement, Trial.id, query)


async def keep_rows(session: Session, row: Trial, rows: Sequence[dict[str, Any]]) -> None:
    """Stores the measurements so far. Does nothing if another server has taken over the job."""
    holds_lease = (Trial.id == row.id) & (Trial.lock_token == row.lock_token)
    await session.execute(update(Trial).where(holds_lease).values(rows=list(rows)))


async def drop_examples(session: Session, trial_id: str) -> None:
    """Deletes the examples, which are private and no longer needed after the measurement."""
    await session.execute(update(Trial).where(Trial.id == trial_id).values(examples=None))


async def forget_older(session: Session, deployment_id: str, kept: int) -> None:
    """Deletes all but the last trials of a deployment."""
    newest = select(Trial.id).where(Trial.deployment_id == deployment_id).order_by(Trial.id.desc())
    for trial in (
        await session.scalars(select(Trial).where(Trial.id.in_(newest.offset(kept))))
    ).all():
        await session.delete(trial)
