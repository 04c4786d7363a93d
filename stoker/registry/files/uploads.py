"""Uploads of one file in parts. The parts become a file when the upload is completed.

The order of the parts is known only then. So each part is a blob of its own until it is copied into
the file.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from fastapi import Request, Response

from stoker.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    StokerError,
)
from stoker.base.ids import Prefix, new_id
from stoker.platform.quotas.limits import Quota
from stoker.platform.web.context import Platform
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.forms import (
    ANY_TYPE,
    StreamedForm,
    checked_content_type,
    checked_filename,
)
from stoker.platform.web.idempotency import Idempotency
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.files import creating, schemas, service, upload_repository
from stoker.registry.files.creating import FileDetails
from stoker.registry.files.receiving import (
    ByteLimit,
    file_limit,
    file_too_large,
    received,
)
from stoker.registry.files.schemas import MAX_PARTS, FileUploadComplete, FileUploadCreate
from stoker.store import db
from stoker.store.blobs import BlobLostError, Blobs, BlobWriter
from stoker.store.blobs.threads import on_disk
from stoker.store.db import Database, Session, uncut
from stoker.store.tables.files import (
    File,
    FileUpload,
    FileUploadPart,
    FileUploadStatus,
    Purpose,
)
from stoker.tenancy.keys.auth import Reach

PART_BYTES = 64 << 20
"""Maximum size of a part."""
OPEN_FOR = timedelta(hours=1)
CLOSED_KEPT = timedelta(days=7)
"""Time after its expiry for which an upload's id still reports its end."""
_COPY_BYTES = 4 << 20


async def create(
    session: Session, platform: Platform, reach: Reach, asked: FileUploadCreate
) -> FileUpload:
    """Opens an upload and reserves the space of its file."""
    most = file_limit(platform)
    if asked.bytes > most:
        raise file_too_large(most)
    now = db.now()
    upload = FileUpload(
        id=new_id(Prefix.FILE_UPLOAD),
        account_id=reach.account_id,
        key_id=reach.key_id,
        status=FileUploadStatus.PENDING,
        purpose=creating.checked_purpose(asked.purpose).value,
        content_type=checked_content_type(asked.mime_type),
        filename=checked_filename(asked.filename, "filename"),
        size=asked.bytes,
        keep_s=asked.expires_after.seconds if asked.expires_after else None,
        file_id=None,
        created_at=now,
        expires_at=now + OPEN_FOR,
    )
    platform.quotas.check_disk(asked.bytes)
    await platform.quotas.take(session, reach.account_id, Quota.UPLOAD_SESSIONS)
    await platform.quotas.take(session, reach.account_id, Quota.STORAGE_BYTES, asked.bytes)
    session.add(upload)
    return upload


async def get(session: Session, reach: Reach, upload_id: str, *, lock: bool = False) -> FileUpload:
    upload = await upload_repository.get(session, reach, upload_id, lock=lock)
    if upload is None:
        raise NotFoundError("Upload not found", code="upload_not_found")
    return upload


async def shown(session: Session, upload: FileUpload) -> schemas.FileUpload:
    """Returns an upload with its file, unless that was deleted."""
    file = None if upload.file_id is None else await session.get(File, upload.file_id)
    return schemas.FileUpload.of(upload, file)


async def add_part(
    platform: Platform, request: Request, reach: Reach, upload_id: str, idempotent: Idempotency
) -> Response:
    """Receives a part. Returns the response."""
    async with platform.database.reading() as session:
        _refuse_closed(await get(session, reach, upload_id))
    form = StreamedForm(request, "data", (), names_file=False)
    async with received(platform, request, form, _part_limit()) as content:
        if known := await idempotent.known(200, content.sha256):
            return known
        part = FileUploadPart(
            id=new_id(Prefix.FILE_PART),
            upload_id=upload_id,
            size=content.size,
            created_at=db.now(),
        )
        await content.writer.finish(part.blob_key, ANY_TYPE)
    is_new = False
    try:
        async with platform.database.transaction() as session:

            async def created() -> schemas.FileUploadPart:
                nonlocal is_new
                await _record(session, platform, reach, part)
                is_new = True
                return schemas.FileUploadPart.of(part)

            response = await idempotent.run(session, created, 200, content.sha256)
    except StokerError:
        await platform.blobs.remove(part.blob_key)
        raise
    if not is_new:
        await platform.blobs.remove(part.blob_key)
    return response


def _part_limit() -> ByteLimit:
    message = f"A part has at most {PART_BYTES} bytes. Split the file into smaller parts."
    return ByteLimit(PART_BYTES, PayloadTooLargeError(message, param="data"))


async def _record(session: Session, platform: Platform, reach: Reach, part: FileUploadPart) -> None:
    upload = await get(session, reach, part.upload_id, lock=True)
    _refuse_closed(upload)
    count, size = await upload_repository.received(session, upload.id)
    # A client repeats a part if it did not receive the answer. It gets another id.
    if size + part.size > 2 * upload.size + PART_BYTES or count >= MAX_PARTS:
        raise PayloadTooLargeError(
            f"The upload has {count} parts with {size} bytes, and its file has {upload.size} "
            "bytes. Complete it, or cancel it and start another one."
        )
    session.add(part)
    await session.flush()
    if size + part.size > upload.size:
        await platform.quotas.took(session, upload.account_id, Quota.STORAGE_BYTES, part.size)


async def complete(
    platform: Platform, reach: Reach, upload_id: str, asked: FileUploadComplete
) -> schemas.FileUpload:
    """Joins the parts to a file. A repeated request returns the same file."""
    async with platform.database.reading() as session:
        upload = await get(session, reach, upload_id)
        if upload.status == FileUploadStatus.COMPLETED:
            return await shown(session, upload)
        _refuse_closed(upload)
        parts = _chosen(upload, await upload_repository.parts(session, [upload.id]), asked)
    # Other servers' requests see these rows change in the meantime: `_complete` checks again.
    details = FileDetails(
        Purpose(upload.purpose), upload.filename, upload.content_type, upload.keep_s
    )
    with full_disk_reported(), lost_store_reported():
        writer = platform.blobs.writer()
        try:
            md5 = await _joined(platform, writer, parts)
            if asked.md5 is not None and asked.md5.lower() != md5:
                raise InvalidRequestError(
                    f"The MD5 of the parts in this order is {md5}. Check the order of part_ids, or "
                    "send the parts again.",
                    code="digest_mismatch",
                    param="md5",
                )
            file = details.row(Reach(upload.account_id, None, upload.key_id or ""), upload.size)
            await creating.finish(writer, file)
        except BlobLostError:
            # The upload has ended in the meantime, perhaps by the same request of another client.
            async with platform.database.reading() as session:
                upload = await get(session, reach, upload_id)
                if upload.status == FileUploadStatus.COMPLETED:
                    return await shown(session, upload)
            raise upload_closed(FileUploadStatus.CANCELLED) from None
        finally:
            await uncut(writer.close())
    try:
        async with platform.database.transaction() as session:
            return await _complete(session, platform, reach, upload_id, file)
    except StokerError:
        await service.discard(platform.blobs, [file])
        raise


async def _complete(
    session: Session, platform: Platform, reach: Reach, upload_id: str, file: File
) -> schemas.FileUpload:
    upload = await get(session, reach, upload_id, lock=True)
    if upload.status == FileUploadStatus.COMPLETED:
        # Another request has completed it in the meantime.
        session.after_commit(lambda: platform.blobs.discard(file.blob_key))
        return await shown(session, upload)
    _refuse_closed(upload)
    await _close(session, platform.blobs, [upload], FileUploadStatus.COMPLETED)
    upload.file_id = file.id
    await session.flush()
    await service.reserve(session, platform, upload.account_id, [file])
    session.add(file)
    return schemas.FileUpload.of(upload, file)


def _chosen(
    upload: FileUpload, parts: Sequence[FileUploadPart], asked: FileUploadComplete
) -> list[FileUploadPart]:
    """Returns the parts of a file in order. Raises `InvalidRequestError` if they are not exactly
    the file.
    """
    by_id = {part.id: part for part in parts}
    for index, identifier in enumerate(asked.part_ids):
        if identifier not in by_id:
            raise InvalidRequestError(
                f"The upload has no part '{identifier}'.", param=f"part_ids[{index}]"
            )
    if len({*asked.part_ids}) < len(asked.part_ids):
        raise InvalidRequestError("'part_ids' has a part more than once.", param="part_ids")
    chosen = [by_id[identifier] for identifier in asked.part_ids]
    size = sum(part.size for part in chosen)
    if size != upload.size:
        raise InvalidRequestError(
            f"The parts have {size} bytes, but the upload declared {upload.size}. Name all parts "
            "of the file in part_ids.",
            param="part_ids",
        )
    return chosen


async def _joined(platform: Platform, writer: BlobWriter, parts: Sequence[FileUploadPart]) -> str:
    """Writes parts one after another. Returns the MD5 of all bytes."""
    digest = hashlib.md5(usedforsecurity=False)

    def take(block: bytes) -> None:
        digest.update(block)
        writer.write(block)

    for part in parts:
        platform.quotas.check_local_disk(part.size)
        for start in range(0, part.size, _COPY_BYTES):
            end = min(start + _COPY_BYTES, part.size)
            async for block in platform.blobs.stream(part.blob_key, start, end):
                await uncut(on_disk(take, block))
    return digest.hexdigest()


async def cancel(session: Session, blobs: Blobs, reach: Reach, upload_id: str) -> FileUpload:
    """Cancels an upload and deletes its parts. A repeated request changes nothing."""
    upload = await get(session, reach, upload_id, lock=True)
    if upload.status != FileUploadStatus.CANCELLED:
        _refuse_closed(upload)
        await _close(session, blobs, [upload], FileUploadStatus.CANCELLED)
    return upload


async def expire(database: Database, blobs: Blobs, now: datetime) -> None:
    """Ends the uploads that have expired at `now`, and deletes the rows of old ones."""
    async with database.transaction() as session:
        expired = await upload_repository.expired(session, now)
        await _close(session, blobs, expired, FileUploadStatus.EXPIRED)
        await upload_repository.forget_closed(session, now - CLOSED_KEPT)


async def _close(
    session: Session, blobs: Blobs, uploads: Sequence[FileUpload], status: FileUploadStatus
) -> None:
    ids = [upload.id for upload in uploads]
    parts = await upload_repository.parts(session, ids)
    keys = [part.blob_key for part in parts]
    for upload in uploads:
        upload.status = status
    await upload_repository.drop_parts(session, ids)

    def remove() -> None:
        for key in keys:
            blobs.discard(key)

    session.after_commit(remove)


def _refuse_closed(upload: FileUpload) -> None:
    status = FileUploadStatus(upload.status)
    if status is FileUploadStatus.PENDING and upload.expires_at <= db.now():
        status = FileUploadStatus.EXPIRED
    if status is not FileUploadStatus.PENDING:
        raise upload_closed(status)


def upload_closed(status: FileUploadStatus) -> ConflictError:
    return ConflictError(
        f"The upload is {status.value} and accepts no more changes. Start another one.",
        code="upload_closed",
    )
