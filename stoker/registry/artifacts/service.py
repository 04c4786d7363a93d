"""Model artifacts and their upload sessions.

A session moves from open to ingesting, then to ready or failed. completion.py performs the
completion, and receiving.py receives the files. The artifact keeps its previous files until the
session is ready.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from stoker.base.config import MIB
from stoker.base.errors import ConflictError, InvalidRequestError, NotFoundError, nearest
from stoker.base.ids import Prefix, new_id
from stoker.inspection import InspectionError, names
from stoker.models.adapters.lora import ADAPTER
from stoker.models.tasks.registry import PIPELINES
from stoker.platform.quotas.limits import Quota
from stoker.platform.quotas.service import QuotaService
from stoker.platform.web.context import Platform
from stoker.registry.artifacts import repository, schemas
from stoker.registry.artifacts.schemas import ArtifactCreate, ArtifactUpdate
from stoker.registry.artifacts.streaming import transfers
from stoker.store import db
from stoker.store.blobs import BlobLostError, Blobs, StoreUnavailableError
from stoker.store.db import Session
from stoker.store.tables.artifacts import (
    CLOSED,
    Artifact,
    ArtifactStatus,
    Upload,
    UploadFile,
    UploadStatus,
)

log = logging.getLogger(__name__)

BLOBS = "artifacts"
CARD, CARD_BYTES = "README.md", 1 << 20
"""File name of the model card, and the maximum bytes of it that are returned."""

_CLOSED_BECAUSE = {
    UploadStatus.SUPERSEDED: "was superseded by a newer one",
    UploadStatus.ABANDONED: "was abandoned",
    UploadStatus.EXPIRED: "has expired",
    UploadStatus.INGESTING: "is being completed",
    UploadStatus.READY: "was completed",
    UploadStatus.FAILED: "was completed and its files were refused",
}
# Keeps running tasks from being garbage-collected: the event loop holds only weak references.
_clearing: set[asyncio.Task[None]] = set()


async def create(
    session: Session, quotas: QuotaService, account_id: str, request: ArtifactCreate
) -> Artifact:
    if request.pipeline is not None and request.pipeline not in {ADAPTER, *PIPELINES}:
        close = nearest(request.pipeline, PIPELINES)
        hint = f" Did you mean '{close}'?" if close else ""
        raise InvalidRequestError(
            f"Unknown pipeline.{hint} Use one of: {', '.join(sorted(PIPELINES))}.",
            param="pipeline",
        )
    await quotas.take(session, account_id, Quota.ARTIFACTS)
    now = db.now()
    artifact = Artifact(
        id=new_id(Prefix.ARTIFACT),
        account_id=account_id,
        display_name=request.display_name,
        requested_pipeline=request.pipeline,
        status=ArtifactStatus.CREATED,
        size_bytes=0,
        created_at=now,
        updated_at=now,
    )
    session.add(artifact)
    return artifact


async def get(
    session: Session, account_id: str, artifact_id: str, *, lock: bool = False
) -> Artifact:
    artifact = await repository.get(session, account_id, artifact_id, lock=lock)
    if artifact is None:
        raise NotFoundError("Artifact not found", code="artifact_not_found")
    return artifact


async def shown(session: Session, *artifacts: Artifact) -> list[schemas.Artifact]:
    """Returns the artifacts as API responses, each with its hub import if it has one."""
    imports = await repository.imports(session, [artifact.id for artifact in artifacts])
    imports_by_id = {key: schemas.Import.of(*row) for key, row in imports.items()}
    return [schemas.Artifact.of(artifact, imports_by_id.get(artifact.id)) for artifact in artifacts]


async def update(
    session: Session, account_id: str, artifact_id: str, request: ArtifactUpdate
) -> Artifact:
    artifact = await get(session, account_id, artifact_id, lock=True)
    if request.display_name is not None:
        artifact.display_name = request.display_name
        artifact.updated_at = db.now()
    return artifact


async def delete(session: Session, blobs: Blobs, account_id: str, artifact_id: str) -> Artifact:
    """Deletes an artifact and everything uploaded for it. No deployment may use it."""
    artifact = await get(session, account_id, artifact_id, lock=True)
    refuse_ingesting(artifact)
    await refuse_used(session, artifact)
    uploads = await repository.uploads(session, artifact.id)
    await repository.remove(session, artifact)
    _clear_after_commit(session, blobs, uploads, UploadStatus.ABANDONED)
    return artifact


async def open_upload(
    session: Session,
    platform: Platform,
    account_id: str,
    artifact_id: str,
    declared_bytes: int | None = None,
) -> tuple[Artifact, Upload]:
    """Opens a session. Supersedes an earlier open one.

    Raises `PayloadTooLargeError` if the account may not store the declared bytes. Raises
    `CapacityError` if the disk has no room.

    Args:
        declared_bytes: total bytes of the session's files.
    """
    settings, blobs = platform.settings, platform.blobs
    artifact = await get(session, account_id, artifact_id, lock=True)
    refuse_ingesting(artifact)
    await refuse_used(session, artifact)
    earlier = await repository.uploads(session, artifact.id, UploadStatus.OPEN, UploadStatus.FAILED)
    for other in earlier:
        await mark_closed(session, other, UploadStatus.SUPERSEDED)
    await session.flush()
    await platform.quotas.take(session, account_id, Quota.UPLOAD_SESSIONS)
    await reserve(session, platform, account_id, declared_bytes or 0)
    now = db.now()
    upload = Upload(
        id=new_id(Prefix.UPLOAD),
        artifact_id=artifact.id,
        status=UploadStatus.OPEN,
        part_size=settings.upload_part_mib * MIB,
        declared_bytes=declared_bytes,
        files_begun=0,
        created_at=now,
        expires_at=now + timedelta(days=settings.upload_expiry_days),
    )
    session.add(upload)
    artifact.status = ArtifactStatus.UPLOADING
    artifact.open_upload_id = upload.id
    artifact.failure_code = artifact.failure_message = None
    artifact.updated_at = now
    _clear_after_commit(session, blobs, earlier, UploadStatus.SUPERSEDED)
    return artifact, upload


async def reserve(session: Session, platform: Platform, account_id: str, more_bytes: int) -> None:
    """Reserves more storage for an account. Raises the same errors as `open_upload`."""
    if more_bytes > 0:
        platform.quotas.check_disk(more_bytes)
        await platform.quotas.take(session, account_id, Quota.STORAGE_BYTES, more_bytes)


async def get_upload(
    session: Session, account_id: str, artifact_id: str, upload_id: str, *, lock: bool = False
) -> tuple[Artifact, Upload]:
    """Returns a session and its artifact. Raises `ConflictError` with `upload_closed` if the
    session was closed without a result.
    """
    artifact = await get(session, account_id, artifact_id, lock=lock)
    upload = await repository.upload(session, account_id, artifact_id, upload_id, lock=lock)
    if upload is None:
        raise NotFoundError("Upload not found", code="upload_not_found")
    if upload.status in CLOSED:
        raise upload_closed(UploadStatus(upload.status))
    return artifact, upload


async def abandon(
    session: Session, blobs: Blobs, account_id: str, artifact_id: str, upload_id: str
) -> Upload:
    """Ends an open or failed session. The artifact keeps its previous files."""
    artifact, upload = await get_upload(session, account_id, artifact_id, upload_id, lock=True)
    refuse_ingesting(artifact)
    if upload.status == UploadStatus.READY:
        raise upload_closed(UploadStatus.READY)
    await mark_closed(session, upload, UploadStatus.ABANDONED)
    restore_status(artifact)
    _clear_after_commit(session, blobs, [upload], UploadStatus.ABANDONED)
    return upload


async def files_of(session: Session, upload_id: str) -> dict[str, tuple[str, int]]:
    """Returns the files of a completed upload. Maps each path to its blob key and size in bytes."""
    files = await repository.files(session, upload_id)
    return {file.path: (file.blob_key, file.size or 0) for file in files}


async def content_of(session: Session, upload_id: str) -> str:
    """Returns a digest of the paths and contents of a completed upload's files. Empty if there are
    no files, or if the server has not computed all digests.
    """
    digest = hashlib.sha256()
    files = await repository.files(session, upload_id)
    for file in files:
        content = file.sha256 or await _digest_of_parts(session, file)
        if content is None:
            return ""
        digest.update(hashlib.sha256(file.path.encode()).digest() + content)
    return digest.hexdigest() if files else ""


async def _digest_of_parts(session: Session, file: UploadFile) -> bytes | None:
    """Returns a digest of the digests of a file's parts. None if they are not the whole file."""
    parts = await repository.parts(session, file.upload_id, file.path)
    if not parts or sum(part.size for part in parts) != file.size:
        return None
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.size.to_bytes(8, "big") + part.sha256)
    return digest.digest()


async def card(platform: Platform, account_id: str, artifact_id: str) -> str:
    """Returns the model card among an artifact's live files. The Markdown comes from untrusted
    authors.

    Raises `NotFoundError`.
    """
    async with platform.database.reading() as session:
        artifact = await get(session, account_id, artifact_id)
        file = await repository.file(session, artifact.live_upload_id or "", CARD)
    if file is not None:
        try:
            content = await platform.blobs.read(file.blob_key, file.size or 0, 0, CARD_BYTES)
        except BlobLostError:
            # The file was replaced after its row was read.
            pass
        else:
            # The size limit may cut through a multi-byte character.
            return content.decode("utf-8", "replace")
    raise NotFoundError(f"The artifact has no card: no {CARD} was uploaded.", code="card_not_found")


def validate_path(path: str) -> None:
    """Raises `InvalidRequestError` if a file of an artifact may not have this path."""
    try:
        names.validate_path(path)
    except InspectionError as error:
        raise InvalidRequestError(error.message, param="path") from error


def refuse_ingesting(artifact: Artifact) -> None:
    if artifact.status == ArtifactStatus.INGESTING:
        raise ConflictError(
            "The artifact's files are being inspected. Try again in a few seconds.",
            code="artifact_ingesting",
            retry_after_s=2,
        )


async def refuse_used(session: Session, artifact: Artifact) -> None:
    if users := await repository.users(session, artifact.id):
        raise ConflictError(
            f"The artifact is in use by the deployments of {', '.join(sorted(users))}. "
            "Delete those first, or create another artifact.",
            code="artifact_in_use",
        )


def refuse_closed(upload: Upload) -> None:
    """Raises `ConflictError` if a session accepts no more files."""
    if upload.status != UploadStatus.OPEN:
        raise upload_closed(UploadStatus(upload.status))


def refuse_clients_of_import(upload: Upload) -> None:
    """Raises `ConflictError` if a client writes into a session that an import fills.

    The artifact names the hub as the source of its files, so a client must not add others.
    """
    if upload.status == UploadStatus.OPEN and upload.origin is not None:
        raise ConflictError(
            "An import writes to this upload session. Wait until it ends, or cancel it "
            "and open a session to upload files.",
            code="upload_of_import",
        )


def upload_closed(status: UploadStatus) -> ConflictError:
    return ConflictError(
        f"This upload session {_CLOSED_BECAUSE[status]}. Open a new one to upload files.",
        code="upload_closed",
    )


def folder(artifact_id: str, upload_id: str) -> str:
    """Returns the prefix of a session's blob keys."""
    return f"{BLOBS}/{artifact_id}/{upload_id}"


async def clear(blobs: Blobs, uploads: Iterable[Upload], status: UploadStatus) -> None:
    """Ends the transfers into sessions that changed to `status`, then removes their bytes."""
    for upload in uploads:
        await transfers.end(upload.id, upload_closed(status))
        try:
            await blobs.delete_prefix(folder(upload.artifact_id, upload.id))
        except StoreUnavailableError as error:
            # `upkeep.sweep_strays` removes the bytes later.
            log.warning("upload's bytes could not be deleted yet: %s", error)


def _clear_after_commit(
    session: Session, blobs: Blobs, uploads: Sequence[Upload], status: UploadStatus
) -> None:
    def begin() -> None:
        task = asyncio.create_task(clear(blobs, uploads, status))
        _clearing.add(task)
        task.add_done_callback(_cleared)

    session.after_commit(begin)


def _cleared(task: asyncio.Task[None]) -> None:
    _clearing.discard(task)
    if not task.cancelled() and (error := task.exception()):
        log.error("upload's bytes stay until the next start", exc_info=error)


async def mark_closed(session: Session, upload: Upload, status: UploadStatus) -> None:
    upload.status = status
    await repository.drop_files(session, upload.id)


def restore_status(artifact: Artifact) -> None:
    """Restores an artifact's state from before its last session."""
    artifact.status = ArtifactStatus.READY if artifact.live_upload_id else ArtifactStatus.CREATED
    artifact.open_upload_id = None
    artifact.failure_code = artifact.failure_message = None
    artifact.updated_at = db.now()
