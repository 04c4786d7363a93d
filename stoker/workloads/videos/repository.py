from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, or_, select

from stoker.platform.web.lists import Page, PageQuery, fetch_light_page
from stoker.store.db import Session
from stoker.store.tables.videos import Video
from stoker.tenancy.keys.auth import Reach


def _within(reach: Reach) -> ColumnElement[bool]:
    condition = Video.account_id == reach.account_id
    if reach.deployment_ids is None:
        return condition
    return condition & Video.deployment_id.in_(reach.deployment_ids)


async def get(session: Session, reach: Reach, video_id: str, *, lock: bool = False) -> Video | None:
    statement = select(Video).where(Video.id == video_id, _within(reach))
    return await session.scalar(statement.with_for_update() if lock else statement)


async def these(session: Session, ids: Collection[str]) -> Sequence[Video]:
    """Returns the existing videos among these ids."""
    return (await session.scalars(select(Video).where(Video.id.in_(ids)))).all()


async def page(session: Session, reach: Reach, query: PageQuery) -> Page[Video]:
    statement, weight = select(Video).where(_within(reach)), func.length(Video.prompt)
    return await fetch_light_page(session, statement, Video.id, query, weight=weight)


async def forget_ended(session: Session, before: datetime) -> None:
    """Deletes the videos that ended before a moment and have no content."""
    empty = or_(Video.expires_at.is_(None), Video.expires_at < before)
    await session.execute(delete(Video).where(Video.completed_at < before, empty))
