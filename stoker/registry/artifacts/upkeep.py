"""Upkeep of artifacts: expired uploads, sessions of lost servers, and objects without a row."""

import contextlib
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from stoker.registry.artifacts import layout, repository
from stoker.registry.artifacts.service import (
    BLOBS,
    clear,
    folder,
    mark_closed,
    restore_status,
    upload_closed,
)
from stoker.registry.artifacts.streaming import transfers
from stoker.store.blobs import Blobs, list_key, part_key
from stoker.store.db import Database, Session
from stoker.store.servers import others_alive
from stoker.store.tables.artifacts import CLOSED, ArtifactStatus, Upload, UploadStatus

log = logging.getLogger(__name__)

UPLOAD_POSITION = 2
"""Index of the upload id among the segments of a blob's key."""
STRAY_AFTER = timedelta(hours=1)
"""Minimum age of an unreferenced blob before it counts as a stray. Such a blob was not written a
moment ago.
"""
CLOSED_KEPT = timedelta(days=7)
"""Time for which a closed session's id still reports why the session was closed."""


async def expire_uploads(database: Database, blobs: Blobs, now: datetime) -> None:
    """Ends the sessions that have expired at `now`, and deletes the rows of those closed long
    ago.
    """
    async with database.transaction() as session:
        expired = await repository.expired(session, now)
        for upload, artifact in expired:
            await mark_closed(session, upload, UploadStatus.EXPIRED)
            if artifact.status == ArtifactStatus.FAILED:
                # The artifact still reports why its files were refused.
                artifact.open_upload_id = None
            else:
                restore_status(artifact)
        await repository.forget_closed(session, now - CLOSED_KEPT)
    await clear(blobs, [upload for upload, _ in expired], UploadStatus.EXPIRED)


async def recover(database: Database, blobs: Blobs) -> None:
    """Cleans up after a crash, before requests are served.

    Reopens sessions that were being inspected, and deletes blobs without a file row. Leaves the
    sessions and blobs of other active servers alone.
    """
    await reopen_lost(database)
    if blobs.is_shared:
        # Another server may be about to record an unknown blob: see `sweep_strays`.
        return
    # List the blobs before the rows: a file's row is written before its bytes.
    keys = await blobs.keys(BLOBS)
    async with database.reading() as session:
        known = await repository.blob_keys(session)
        any_artifact = await repository.any_artifact(session)
        is_alone = database.is_sqlite or not await others_alive(session, database.server_id)
        # New parts are stored next to the parts that they replace until they are complete.
        writing = set[tuple[str, str]]() if is_alone else await repository.open_folders(session)
    orphans = [key for key in keys if key not in known and _ids_of(key) not in writing]
    if orphans and not any_artifact:
        # A wrong database is more likely than that many crashes: these may be a user's models.
        log.warning("data folder holds files of artifacts that the database does not have: kept")
        return
    if is_alone:
        await blobs.delete(orphans)
        return
    for key in orphans:
        # Another server may delete the blob at the same time.
        with contextlib.suppress(FileNotFoundError):
            await blobs.delete([key])


async def reopen_lost(database: Database) -> None:
    """Reopens the sessions with an inspection that ended with its server, so that they can be
    completed again.
    """
    async with database.transaction() as session:
        await repository.reopen_ingesting(session, whosever=database.is_sqlite)


async def end_closed(database: Database) -> None:
    """Ends the transfers into sessions that another server has closed or is completing."""
    active = transfers.uploads()
    if not active:
        return
    async with database.reading() as session:
        states = await repository.states(session, active)
    for upload_id in active:
        status = states.get(upload_id, UploadStatus.ABANDONED)
        if status != UploadStatus.OPEN:
            await transfers.end(upload_id, upload_closed(status))


def _ids_of(key: str) -> tuple[str, str]:
    """Returns the artifact id and the upload id in a blob key made by `folder`."""
    _, artifact, upload, *_ = [*key.split("/"), "", ""]
    return artifact, upload


async def sweep_strays(database: Database, blobs: Blobs) -> None:
    """Removes blobs without a row from a store that several servers share.

    Checks only uploads that accept no more parts. In other uploads, a blob's row may be written at
    this moment.
    """
    if not blobs.is_shared:
        return
    before = await blobs.now() - STRAY_AFTER
    async for some in blobs.listed(BLOBS):
        keys = [blob.key for blob in some if blob.modified_at < before]
        if keys and (strays := await _strays(database, keys)):
            async with database.reading() as session:
                any_artifact = await repository.any_artifact(session)
            if not any_artifact:
                # As in `recover`: the database is probably the wrong one.
                log.warning(
                    "object store holds files of artifacts that the database does not have: kept"
                )
                return
            log.warning("objects without a database row removed", extra={"objects": len(strays)})
            await blobs.delete(strays)


async def _strays(database: Database, keys: Sequence[str]) -> Sequence[str]:
    by_upload: dict[str, list[str]] = {}
    for key in keys:
        segments = key.split("/")
        # Keys of artifact blobs always have more segments.
        if len(segments) > UPLOAD_POSITION + 1:
            by_upload.setdefault(segments[UPLOAD_POSITION], []).append(key)
    strays: list[str] = []
    async with database.reading() as session:
        for upload_id, upload_keys in by_upload.items():
            upload = await session.get(Upload, upload_id)
            if upload is None or upload.status in (*CLOSED, UploadStatus.FAILED):
                strays += upload_keys
            elif upload.status == UploadStatus.READY:
                known = await _objects_of(session, upload)
                strays += [key for key in upload_keys if key not in known]
    return strays


async def _objects_of(session: Session, upload: Upload) -> set[str]:
    files = await repository.files(session, upload.id)
    parts = await repository.parts(session, upload.id)
    known = {list_key(folder(upload.artifact_id, upload.id))}
    for file, file_parts, _ in layout.by_file(files, parts, upload.part_size):
        known |= {part_key(file.blob_key, part.number, part.sha256) for part in file_parts}
    return known
