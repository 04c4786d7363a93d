from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, select

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.files import File
from stoker.tenancy.keys.auth import Reach


def _within(reach: Reach) -> ColumnElement[bool]:
    condition = File.account_id == reach.account_id
    if reach.deployment_ids is None:
        return condition
    is_made_by = File.deployment_id.in_(reach.deployment_ids)
    return condition & (is_made_by | (File.key_id == reach.key_id))


async def get(session: Session, reach: Reach, file_id: str) -> File | None:
    return await session.scalar(select(File).where(File.id == file_id, _within(reach)))


async def by_id(session: Session, file_id: str) -> File | None:
    """Returns a file of any account, for signed links."""
    return await session.get(File, file_id)


async def page(session: Session, reach: Reach, query: PageQuery, purpose: str | None) -> Page[File]:
    statement = select(File).where(_within(reach))
    if purpose is not None:
        statement = statement.where(File.purpose == purpose)
    return await fetch_page(session, statement, File.id, query)


async def owned(session: Session, owner_id: str) -> Sequence[File]:
    return (await session.scalars(select(File).where(File.owner_id == owner_id))).all()


async def expired(session: Session, now: datetime, limit: int) -> Sequence[File]:
    statement = select(File).where(File.expires_at <= now).order_by(File.expires_at).limit(limit)
    return (await session.scalars(statement)).all()


async def known(session: Session, ids: Collection[str]) -> set[str]:
    return set(await session.scalars(select(File.id).where(File.id.in_(ids))))
