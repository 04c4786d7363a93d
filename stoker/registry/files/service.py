"""Files of models and clients. Links to generated files are signed.

A file's bytes are written before its row, so that a row never refers to missing bytes. Bytes
without a row are swept.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta

from stoker.base.errors import NotFoundError, StokerError
from stoker.base.ids import Prefix, made_at, new_id
from stoker.platform.quotas.limits import Quota
from stoker.platform.web.context import Platform
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.files import repository, upload_repository
from stoker.store import db
from stoker.store.blobs import BlobLostError, Blobs
from stoker.store.db import Database, Session
from stoker.store.tables.files import File, Purpose
from stoker.tenancy.keys.auth import Reach

log = logging.getLogger(__name__)

BLOBS = "files/"
PART_BLOBS = "file-parts/"
STRAY_AFTER = timedelta(minutes=10)
"""Minimum age of bytes without a row before they are removed. Writing both takes a moment."""
UNFINISHED_AFTER = timedelta(hours=1)
"""Minimum time since the last block of an unfinished blob before it is removed."""
_AT_ONCE = 500
_Known = Callable[[Session, Collection[str]], Awaitable[set[str]]]
"""Returns the ids that have a row."""


async def store(
    platform: Platform,
    *,
    account_id: str,
    deployment_id: str,
    purpose: Purpose,
    contents: Sequence[bytes],
    content_type: str,
) -> list[File]:
    """Stores contents as files for the retention time."""
    files: list[File] = []
    try:
        for content in contents:
            file = await write(
                platform,
                account_id=account_id,
                deployment_id=deployment_id,
                purpose=purpose,
                content=content,
                content_type=content_type,
            )
            files.append(file)
    except BaseException:
        # The caller has disconnected, or the disk is full.
        for file in files:
            platform.blobs.discard(file.blob_key)
        raise
    try:
        async with platform.database.transaction() as session:
            await reserve(session, platform, account_id, files)
            session.add_all(files)
    except StokerError:
        await discard(platform.blobs, files)
        raise
    return files


async def reserve(
    session: Session, platform: Platform, account_id: str, files: Sequence[File]
) -> None:
    """Reserves quota of an account for more files. Raises as `QuotaService.take`."""
    stored = sum(file.size for file in files)
    await platform.quotas.take(session, account_id, Quota.FILES, len(files))
    await platform.quotas.take(session, account_id, Quota.STORAGE_BYTES, stored)


async def write(
    platform: Platform,
    *,
    account_id: str,
    deployment_id: str,
    purpose: Purpose,
    content: bytes,
    content_type: str,
    owner_id: str | None = None,
) -> File:
    """Writes a file's bytes and returns its row. The caller adds the row to its transaction, or
    calls `discard`.

    Raises `CapacityError` if the disk has no room, or the store does not answer.
    """
    platform.quotas.check_disk(len(content))
    now = db.now()
    file = File(
        id=new_id(Prefix.FILE),
        account_id=account_id,
        deployment_id=deployment_id,
        owner_id=owner_id,
        purpose=purpose.value,
        content_type=content_type,
        size=len(content),
        created_at=now,
        expires_at=now + timedelta(hours=platform.settings.media_retention_h),
    )
    with full_disk_reported(), lost_store_reported():
        await platform.blobs.put(file.blob_key, content, content_type)
    return file


async def read(platform: Platform, file: File) -> bytes:
    """Returns a file's bytes. Raises `NotFoundError`, and `CapacityError` if the store does not
    answer.
    """
    try:
        with lost_store_reported():
            return await platform.blobs.get(file.blob_key)
    except BlobLostError:
        raise gone() from None


async def discard(blobs: Blobs, files: Iterable[File]) -> None:
    """Removes the bytes of files without a row."""
    for file in files:
        await blobs.remove(file.blob_key)


async def get(session: Session, reach: Reach, file_id: str) -> File:
    return _there(await repository.get(session, reach, file_id))


async def by_link(platform: Platform, file_id: str, expires: int, now: datetime) -> File:
    """Returns the file of a link with a valid signature. Raises `NotFoundError` if the link has
    expired.
    """
    if expires <= now.timestamp():
        raise NotFoundError("This link has expired.", code="link_expired")
    async with platform.database.reading() as session:
        return _there(await repository.by_id(session, file_id))


async def delete(session: Session, blobs: Blobs, file: File) -> None:
    await session.delete(file)
    remove_after_commit(session, blobs, [file])


def remove_after_commit(session: Session, blobs: Blobs, files: Sequence[File]) -> None:
    """Removes the bytes of files with rows that this transaction deletes, after the commit."""

    def remove() -> None:
        for file in files:
            blobs.discard(file.blob_key)

    session.after_commit(remove)


def link(platform: Platform, base_url: str, file: File) -> str:
    """Returns a link to a file's content. The link needs no key and is valid until the file
    expires.

    Args:
        base_url: address of this server as the client sees it.
    """
    expires = int(file.expires_at.timestamp())
    signature = platform.secret.sign(signed_text(file.id, expires))
    return f"{base_url}/v1/files/{file.id}/content?expires={expires}&signature={signature}"


def signed_text(file_id: str, expires: int) -> str:
    return f"{file_id} {expires}"


async def sweep(database: Database, blobs: Blobs, now: datetime) -> None:
    """Removes the files that have expired at `now`."""
    while True:
        async with database.transaction() as session:
            files = await repository.expired(session, now, _AT_ONCE)
            for file in files:
                await session.delete(file)
            remove_after_commit(session, blobs, files)
        if len(files) < _AT_ONCE:
            return


async def sweep_strays(database: Database, blobs: Blobs, now: datetime) -> None:
    """Removes bytes without a row. Their server was killed between writing the bytes and the
    row.
    """
    await blobs.sweep(now - UNFINISHED_AFTER)
    await _sweep(database, blobs, now - STRAY_AFTER, BLOBS, repository.known)
    await _sweep(database, blobs, now - STRAY_AFTER, PART_BLOBS, upload_repository.known_parts)


async def _sweep(
    database: Database, blobs: Blobs, before: datetime, prefix: str, known_ids: _Known
) -> None:
    # The id of a large file is made before its bytes are in a bucket.
    listed = [blob async for some in blobs.listed(prefix) for blob in some]
    ids = [blob.key.removeprefix(prefix) for blob in listed if blob.modified_at < before]
    old = [blob_id for blob_id in ids if (made_at(blob_id) or time.time()) < before.timestamp()]
    for start in range(0, len(old), _AT_ONCE):
        some = old[start : start + _AT_ONCE]
        async with database.reading() as session:
            known = await known_ids(session, some)
        for identifier in set(some) - known:
            log.warning("file without a database row removed", extra={"file": identifier})
            await blobs.remove(f"{prefix}{identifier}")


def gone() -> NotFoundError:
    return NotFoundError(
        "File not found. Files are removed when they expire.", code="file_not_found"
    )


def _there(file: File | None) -> File:
    if file is None:
        raise gone()
    return file
