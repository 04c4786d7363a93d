"""Completes an upload: checks that all files were received, inspects them, and marks the artifact
ready or failed.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from stoker.base.errors import ConflictError, NotFoundError
from stoker.inspection import Inspection, InspectionError
from stoker.platform.web.context import Platform
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.artifacts import layout, repository, service
from stoker.registry.artifacts.streaming import KeyedLocks, transfers
from stoker.store import db
from stoker.store.blobs import PartOfFile, WholeFile
from stoker.store.db import Database, Session
from stoker.store.tables.artifacts import Artifact, ArtifactStatus, Upload, UploadStatus

_completing = KeyedLocks()


@dataclass(frozen=True)
class _Frozen:
    """Snapshot of an upload session that accepts no more files and is about to be inspected."""

    artifact_id: str
    upload_id: str
    account_id: str
    requested_pipeline: str | None
    files: Mapping[str, WholeFile]


_cut_off: dict[str, _Frozen] = {}
"""Interrupted sessions by upload id. They must be reopened."""


async def complete(
    platform: Platform,
    account_id: str,
    artifact_id: str,
    upload_id: str,
    *,
    is_import: bool = False,
) -> Artifact:
    """Inspects a session's files and makes them the artifact's live files. The artifact's status
    holds the outcome.

    A repeated call returns the artifact again. A concurrent call waits for the first one. Raises
    `ConflictError` with `upload_incomplete` if bytes are missing. The session then stays open.

    Args:
        is_import: True if an import completes its own session, which no client may do.
    """
    with full_disk_reported(), lost_store_reported():
        async with _completing.hold(upload_id):
            return await _complete(
                platform, account_id, artifact_id, upload_id, is_import=is_import
            )


def message(artifact: Artifact) -> str:
    """Returns a sentence that describes the outcome of the completion."""
    match artifact.status:
        case ArtifactStatus.READY:
            return "The artifact is ready to be deployed."
        case ArtifactStatus.FAILED:
            hint = " Correct them in this upload and complete it again." * bool(
                artifact.open_upload_id
            )
            return f"The files were refused: {artifact.failure_message}{hint}"
        case status:
            return f"This upload was completed before; the artifact is now {status}."


async def _complete(
    platform: Platform, account_id: str, artifact_id: str, upload_id: str, *, is_import: bool
) -> Artifact:
    cut_off = _cut_off.get(upload_id)
    if cut_off and cut_off.account_id == account_id:
        # The lock makes this the only call that completes the upload.
        await _reopen(platform.database, cut_off)
    frozen: _Frozen | None = None
    try:
        async with platform.database.transaction() as session:
            artifact, upload = await service.get_upload(
                session, account_id, artifact_id, upload_id, lock=True
            )
            if upload.status in (UploadStatus.READY, UploadStatus.FAILED):
                return artifact
            if artifact.status == ArtifactStatus.FAILED and artifact.open_upload_id == upload.id:
                # The files did not change since they were refused: a change would have set another
                # status.
                return artifact
            if not is_import:
                service.refuse_clients_of_import(upload)
            frozen = await _freeze(session, artifact, upload, platform.database.server_id)
        await transfers.end(upload_id, service.upload_closed(UploadStatus.INGESTING))
        outcome, artifact, dropped = await _ingest(platform, frozen)
    except BaseException:
        # The files were neither accepted nor refused, so the client may complete again. `frozen` is
        # set before the commit returns, because a cancelled task may have committed.
        if frozen:
            _cut_off[upload_id] = frozen
            with contextlib.suppress(Exception):
                await asyncio.shield(reopen_cut_off(platform.database))
        raise
    if dropped is not None:
        await service.clear(platform.blobs, [dropped], UploadStatus(dropped.status))
    of_upload = service.folder(artifact_id, upload_id)
    if isinstance(outcome, InspectionError):
        platform.blobs.reopen(of_upload)
    else:
        platform.blobs.tidy(of_upload, [*frozen.files.values()])
    return artifact


async def _freeze(session: Session, artifact: Artifact, upload: Upload, server_id: str) -> _Frozen:
    service.refuse_ingesting(artifact)
    await service.refuse_used(session, artifact)
    files = await repository.files(session, upload.id)
    if not files:
        raise ConflictError("No file was uploaded in this session yet.", code="upload_incomplete")
    parts = await repository.parts(session, upload.id)
    whole_files: dict[str, WholeFile] = {}
    for file, file_parts, state in layout.by_file(files, parts, upload.part_size):
        if not state.complete:
            raise _incomplete(file.path, state)
        file.size = state.received
        of_file = [PartOfFile(part.number, part.size, part.sha256) for part in file_parts]
        whole_files[file.path] = WholeFile(file.blob_key, state.received, of_file)
    upload.status = UploadStatus.INGESTING
    upload.server_id = server_id
    artifact.status = ArtifactStatus.INGESTING
    artifact.updated_at = db.now()
    return _Frozen(
        artifact_id=artifact.id,
        upload_id=upload.id,
        account_id=artifact.account_id,
        requested_pipeline=artifact.requested_pipeline,
        files=whole_files,
    )


async def _ingest(
    platform: Platform, frozen: _Frozen
) -> tuple[Inspection | InspectionError, Artifact, Upload | None]:
    """Returns the inspection's outcome, the artifact, and the upload with bytes that can be
    deleted.
    """
    of_upload = service.folder(frozen.artifact_id, frozen.upload_id)
    await platform.blobs.complete(of_upload, [*frozen.files.values()])
    outcome = await _inspected(platform, frozen)
    return outcome, *await _settle(platform.database, frozen, outcome)


async def _inspected(platform: Platform, frozen: _Frozen) -> Inspection | InspectionError:
    try:
        files = {path: (file.key, file.size) for path, file in frozen.files.items()}
        return await platform.inspectors.inspect(
            frozen.account_id, platform.blobs, files, frozen.requested_pipeline
        )
    except InspectionError as error:
        return error


async def _settle(
    database: Database, frozen: _Frozen, outcome: Inspection | InspectionError
) -> tuple[Artifact, Upload | None]:
    """Records the outcome of the inspection. Returns the artifact and the upload with bytes that
    are no longer needed.
    """
    async with database.transaction() as session:
        artifact, upload = await _frozen_rows(session, frozen)
        if not _is_ours(database, upload):
            # This server was silent for so long that another server reopened the session.
            raise ConflictError(
                "The inspection was lost. Complete the upload again.",
                code="upload_incomplete",
            )
        upload.server_id = None
        artifact.updated_at = db.now()
        if isinstance(outcome, InspectionError):
            artifact.status = ArtifactStatus.FAILED
            artifact.failure_code = outcome.code
            artifact.failure_message = outcome.message
            dropped = _refuse(artifact, upload)
        else:
            artifact.open_upload_id = None
            upload.completed_at = db.now()
            dropped = await _live_upload(session, artifact)
            if dropped is not None:
                dropped.status = UploadStatus.SUPERSEDED
            _make_live(artifact, upload, outcome, frozen)
        if dropped is not None:
            await repository.drop_files(session, dropped.id)
    return artifact, dropped


def _refuse(artifact: Artifact, upload: Upload) -> Upload | None:
    """Keeps a client's refused files, because the client may correct one of them. Ends the session
    of an import and returns its upload.
    """
    if upload.origin is None:
        upload.status = UploadStatus.OPEN
        return None
    artifact.open_upload_id = None
    upload.status, upload.completed_at = UploadStatus.FAILED, db.now()
    return upload


async def _live_upload(session: Session, artifact: Artifact) -> Upload | None:
    if artifact.live_upload_id is None:
        return None
    return await repository.upload(
        session, artifact.account_id, artifact.id, artifact.live_upload_id
    )


def _make_live(artifact: Artifact, upload: Upload, inspection: Inspection, frozen: _Frozen) -> None:
    fields = asdict(inspection)
    artifact.pipeline = fields.pop("pipeline")
    artifact.inspection = fields
    artifact.size_bytes = sum(file.size for file in frozen.files.values())
    artifact.live_upload_id = upload.id
    artifact.origin = upload.origin
    artifact.status = ArtifactStatus.READY
    upload.status = UploadStatus.READY


async def reopen_cut_off(database: Database) -> None:
    """Reopens the sessions with an interrupted inspection, so that they can be completed again.

    Includes sessions that could not be reopened at once. The cause of the interruption, such as a
    full disk, can prevent that write too.
    """
    for frozen in [*_cut_off.values()]:
        await _reopen(database, frozen)


async def _reopen(database: Database, frozen: _Frozen) -> None:
    with contextlib.suppress(NotFoundError):
        await _open(database, frozen)
    _cut_off.pop(frozen.upload_id, None)


async def _open(database: Database, frozen: _Frozen) -> None:
    async with database.transaction() as session:
        artifact, upload = await _frozen_rows(session, frozen)
        if _is_ours(database, upload):
            upload.status, upload.server_id = UploadStatus.OPEN, None
            artifact.status = ArtifactStatus.UPLOADING


def _is_ours(database: Database, upload: Upload) -> bool:
    is_ingesting = upload.status == UploadStatus.INGESTING
    return is_ingesting and upload.server_id == database.server_id


async def _frozen_rows(session: Session, frozen: _Frozen) -> tuple[Artifact, Upload]:
    return await service.get_upload(
        session, frozen.account_id, frozen.artifact_id, frozen.upload_id, lock=True
    )


def _incomplete(path: str, state: layout.FileState) -> ConflictError:
    of = "" if state.size is None else f" of {state.size}"
    return ConflictError(
        f"{path} is incomplete: {state.received}{of} bytes are stored without a "
        f"gap, and part {state.missing} is missing. Send the rest, then complete "
        "the upload again.",
        code="upload_incomplete",
        param=path,
    )
