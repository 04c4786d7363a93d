from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import CursorResult, delete, func, select, update

from stoker.store.db import Session
from stoker.store.tables.keys import ApiKey
from stoker.store.tables.responses import ResponseEvents, StoredResponse
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


async def state(session: Session, response_id: str) -> tuple[str, bool] | None:
    """Returns a response's status, and True if a client may have received stored events."""
    statement = select(StoredResponse.status, StoredResponse.is_followed)
    row = (await session.execute(statement.where(StoredResponse.id == response_id))).one_or_none()
    return None if row is None else (row.status, row.is_followed)


async def events(
    session: Session, response_id: str, *, first: int, limit: int
) -> Sequence[ResponseEvents]:
    """Returns groups of events in order, from the group with this sequence number on."""
    statement = (
        select(ResponseEvents)
        .where(ResponseEvents.response_id == response_id, ResponseEvents.last >= first)
        .order_by(ResponseEvents.last)
        .limit(limit)
    )
    return (await session.scalars(statement)).all()


async def last_event(session: Session, response_id: str) -> int | None:
    """Returns the sequence number of the last stored event."""
    statement = select(func.max(ResponseEvents.last))
    return await session.scalar(statement.where(ResponseEvents.response_id == response_id))


async def count_events(session: Session, row: StoredResponse, size: int) -> bool:
    """Adds to the size of the events. Returns False if the row's lease has ended."""
    result = await session.execute(
        update(StoredResponse)
        .where(StoredResponse.id == row.id, StoredResponse.lock_token == row.lock_token)
        .values(event_bytes=StoredResponse.event_bytes + size)
        .execution_options(synchronize_session=False)
    )
    return isinstance(result, CursorResult) and result.rowcount == 1


async def add_event_bytes(session: Session, response_id: str, size: int) -> None:
    await session.execute(
        update(StoredResponse)
        .where(StoredResponse.id == response_id)
        .values(event_bytes=StoredResponse.event_bytes + size)
        .execution_options(synchronize_session=False)
    )


def add_events(session: Session, response_id: str, last: int, events: bytes) -> None:
    session.add(ResponseEvents(response_id=response_id, last=last, events=events))


async def mark_followed(session: Session, response_id: str) -> None:
    """Notes that a client may receive stored events."""
    await session.execute(
        update(StoredResponse).where(StoredResponse.id == response_id).values(is_followed=True)
    )


async def discard_events(session: Session, row: StoredResponse) -> bool:
    """Deletes the events of an earlier attempt. Returns False if a client may have received
    them.
    """
    discarded = await session.execute(
        update(StoredResponse)
        .where(
            StoredResponse.id == row.id,
            StoredResponse.lock_token == row.lock_token,
            StoredResponse.is_followed.is_(False),
        )
        .values(event_bytes=0)
        .execution_options(synchronize_session=False)
    )
    if not isinstance(discarded, CursorResult) or discarded.rowcount != 1:
        return False
    await session.execute(delete(ResponseEvents).where(ResponseEvents.response_id == row.id))
    return True


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
