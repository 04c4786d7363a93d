from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select

from stoker.store.db import Session
from stoker.store.tables.files import FileUpload, FileUploadPart, FileUploadStatus
from stoker.tenancy.keys.auth import Reach

_AT_ONCE = 500


async def get(
    session: Session, reach: Reach, upload_id: str, *, lock: bool = False
) -> FileUpload | None:
    """Returns an upload. With `lock`, no other transaction can change it in the meantime."""
    query = select(FileUpload).where(
        FileUpload.id == upload_id, FileUpload.account_id == reach.account_id
    )
    if reach.deployment_ids is not None:
        query = query.where(FileUpload.key_id == reach.key_id)
    return await session.scalar(query.with_for_update() if lock else query)


async def parts(session: Session, upload_ids: Collection[str]) -> Sequence[FileUploadPart]:
    """Returns the parts of uploads, oldest first."""
    query = select(FileUploadPart).where(FileUploadPart.upload_id.in_(upload_ids))
    return (await session.scalars(query.order_by(FileUploadPart.id))).all()


async def received(session: Session, upload_id: str) -> tuple[int, int]:
    """Returns the number of an upload's parts, and their bytes."""
    query = select(func.count(), func.coalesce(func.sum(FileUploadPart.size), 0)).where(
        FileUploadPart.upload_id == upload_id
    )
    count, size = (await session.execute(query)).one()
    return int(count), int(size)


async def drop_parts(session: Session, upload_ids: Collection[str]) -> None:
    await session.execute(delete(FileUploadPart).where(FileUploadPart.upload_id.in_(upload_ids)))


async def expired(session: Session, now: datetime) -> Sequence[FileUpload]:
    """Returns some of the pending uploads that have expired at `now`, and locks them."""
    statement = (
        select(FileUpload)
        .where(FileUpload.status == FileUploadStatus.PENDING, FileUpload.expires_at <= now)
        .limit(_AT_ONCE)
        .with_for_update()
    )
    return (await session.scalars(statement)).all()


async def forget_closed(session: Session, before: datetime) -> None:
    """Deletes the rows of ended uploads with an expiry time earlier than `before`."""
    await session.execute(
        delete(FileUpload).where(
            FileUpload.status != FileUploadStatus.PENDING, FileUpload.expires_at < before
        )
    )


async def known_parts(session: Session, ids: Collection[str]) -> set[str]:
    """Returns the ids of existing parts among these ids."""
    return set(await session.scalars(select(FileUploadPart.id).where(FileUploadPart.id.in_(ids))))
