"""Database statements for the records of idempotent requests."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import delete

from stoker.store.db import Session
from stoker.store.tables.idempotency import IdempotencyRecord


async def delete_records_of(session: Session, object_ids: Collection[str]) -> None:
    """Deletes the records whose responses contain one of these objects."""
    await session.execute(
        delete(IdempotencyRecord).where(IdempotencyRecord.object_id.in_(object_ids))
    )


async def delete_records_before(session: Session, before: datetime) -> None:
    """Deletes the records made before a time."""
    await session.execute(delete(IdempotencyRecord).where(IdempotencyRecord.created_at < before))
