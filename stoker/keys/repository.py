from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select, update

from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.deployments import Deployment
from stoker.store.tables.keys import ApiKey
from stoker.web.lists import Page, PageQuery, fetch_page


async def by_public_id(session: Session, public_id: str) -> ApiKey | None:
    return await session.scalar(
        select(ApiKey).where(ApiKey.public_id == public_id, ApiKey.revoked_at.is_(None))
    )


async def get(session: Session, account_id: str | None, key_id: str) -> ApiKey | None:
    """A live key of the account; of any account, and operators' keys too, where None is given."""
    query = select(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    if account_id is not None:
        query = query.where(ApiKey.account_id == account_id)
    return await session.scalar(query)


async def page(session: Session, account_id: str | None, query: PageQuery) -> Page[ApiKey]:
    statement = select(ApiKey).where(ApiKey.revoked_at.is_(None))
    if account_id is not None:
        statement = statement.where(ApiKey.account_id == account_id)
    return await fetch_page(session, statement, ApiKey.id, query)


async def account_exists(session: Session, account_id: str) -> bool:
    return await session.get(Account, account_id) is not None


async def deployment_ids(session: Session, account_id: str, ids: list[str]) -> set[str]:
    """Those of the ids that are deployments of the account."""
    return set(
        await session.scalars(
            select(Deployment.id).where(Deployment.account_id == account_id, Deployment.id.in_(ids))
        )
    )


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
    for key_id, moment in used.items():
        await session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=moment))
