from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select

from stoker.store.db import Session
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.responses import StoredResponse
from stoker.tenancy.keys.auth import Reach


async def get(
    session: Session, reach: Reach, response_id: str, *, lock: bool = False
) -> StoredResponse | None:
    statement = select(StoredResponse).where(
        StoredResponse.id == response_id, StoredResponse.account_id == reach.account_id
    )
    if reach.deployment_ids is not None:
        statement = statement.where(StoredResponse.deployment_id.in_(reach.deployment_ids))
    return await session.scalar(statement.with_for_update() if lock else statement)


async def of_revoked_keys(session: Session) -> Sequence[str]:
    """Returns ids of responses whose key was revoked."""
    revoked = select(ApiKey.public_id).where(ApiKey.revoked_at.is_not(None))
    statement = select(StoredResponse.id).where(StoredResponse.api_key.in_(revoked)).limit(1000)
    return (await session.scalars(statement)).all()


async def older(session: Session, before: datetime) -> Sequence[str]:
    """Returns ids of responses that were created before a time."""
    statement = select(StoredResponse.id).where(StoredResponse.created_at < before).limit(1000)
    return (await session.scalars(statement)).all()


async def delete_these(session: Session, ids: Sequence[str]) -> None:
    await session.execute(delete(StoredResponse).where(StoredResponse.id.in_(ids)))
