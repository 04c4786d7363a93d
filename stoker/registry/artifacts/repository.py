from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.artifacts import (
    CLOSED,
    Artifact,
    ArtifactStatus,
    Upload,
    UploadFile,
    UploadPart,
    UploadStatus,
)
from stoker.store.tables.deployments import Deployment, DeploymentVersion
from stoker.store.tables.imports import Import
from stoker.store.tables.servers import Server


async def get(
    session: Session, account_id: str, artifact_id: str, *, lock: bool = False
) -> Artifact | None:
    """Returns an artifact of the account. With `lock`, no other transaction can change it in the
    meantime.
    """
    query = select(Artifact).where(Artifact.id == artifact_id, Artifact.account_id == account_id)
    # SQLite has no row locks, but a writing transaction has exclusive use of the database.
    return await session.scalar(query.with_for_update() if lock else query)


async def these(session: Session, ids: Collection[str]) -> Sequence[Artifact]:
    """Returns the existing artifacts among these ids."""
    return (await session.scalars(select(Artifact).where(Artifact.id.in_(ids)))).all()


async def page(session: Session, account_id: str, query: PageQuery) -> Page[Artifact]:
    statement = select(Artifact).where(Artifact.account_id == account_id)
    return await fetch_page(session, statement, Artifact.id, query)


async def imports(session: Session, artifact_ids: Collection[str]) -> dict[str, tuple[Import, int]]:
    """Returns the imports of these artifacts by artifact id, each with its received bytes."""
    received = (
        select(func.coalesce(func.sum(UploadPart.size), 0))
        .where(UploadPart.upload_id == Import.upload_id)
        .scalar_subquery()
    )
    statement = select(Import, received).where(Import.artifact_id.in_(artifact_ids))
    return {row.artifact_id: (row, int(size)) for row, size in await session.execute(statement)}


async def imported_by(session: Session, upload_ids: Collection[str]) -> Sequence[str]:
    """Returns the artifacts with hub imports that use these upload sessions."""
    query = select(Import.artifact_id).where(Import.upload_id.in_(upload_ids))
    return (await session.scalars(query)).all()


async def remove(session: Session, artifact: Artifact) -> None:
    """Removes an artifact with its uploads, files and parts."""
    await session.delete(artifact)
    await session.flush()


async def upload(
    session: Session, account_id: str, artifact_id: str, upload_id: str, *, lock: bool = False
) -> Upload | None:
    query = (
        select(Upload)
        .join(Artifact, Artifact.id == Upload.artifact_id)
        .where(
            Upload.id == upload_id,
            Upload.artifact_id == artifact_id,
            Artifact.account_id == account_id,
        )
    )
    return await session.scalar(query.with_for_update(of=Upload) if lock else query)


async def states(session: Session, upload_ids: Collection[str]) -> dict[str, UploadStatus]:
    statement = select(Upload.id, Upload.status).where(Upload.id.in_(upload_ids))
    rows = await session.execute(statement)
    return {upload_id: UploadStatus(status) for upload_id, status in rows}


async def uploads(session: Session, artifact_id: str, *status: UploadStatus) -> Sequence[Upload]:
    """Returns the uploads of an artifact. If states are passed, only uploads in one of them."""
    query = select(Upload).where(Upload.artifact_id == artifact_id)
    if status:
        query = query.where(Upload.status.in_(status))
    return (await session.scalars(query)).all()


async def expired(session: Session, now: datetime) -> Sequence[tuple[Upload, Artifact]]:
    """Returns the open sessions that have expired at `now`, with their artifacts."""
    rows = await session.execute(
        select(Upload, Artifact)
        .join(Artifact, Artifact.id == Upload.artifact_id)
        .where(Upload.status == UploadStatus.OPEN, Upload.expires_at <= now)
        .with_for_update()
    )
    return [(upload, artifact) for upload, artifact in rows]


async def forget_closed(session: Session, before: datetime) -> None:
    """Deletes the rows of closed sessions with an expiry time earlier than `before`."""
    await session.execute(
        delete(Upload).where(Upload.status.in_(CLOSED), Upload.expires_at < before)
    )


async def reopen_ingesting(session: Session, *, whosever: bool) -> None:
    """Reopens the sessions with an interrupted inspection: those of stopped servers, or with
    `whosever` those of all servers.
    """
    cut_off = Upload.status == UploadStatus.INGESTING
    if not whosever:
        is_at_work = exists().where(Server.id == Upload.server_id)
        cut_off = and_(cut_off, or_(Upload.server_id.is_(None), ~is_at_work))
    artifacts = select(Upload.artifact_id).where(cut_off)
    await session.execute(
        update(Artifact)
        .where(Artifact.id.in_(artifacts), Artifact.status == ArtifactStatus.INGESTING)
        .values(status=ArtifactStatus.UPLOADING)
    )
    await session.execute(
        update(Upload).where(cut_off).values(status=UploadStatus.OPEN, server_id=None)
    )


async def files(session: Session, upload_id: str) -> Sequence[UploadFile]:
    return (
        await session.scalars(
            select(UploadFile).where(UploadFile.upload_id == upload_id).order_by(UploadFile.path)
        )
    ).all()


async def file(session: Session, upload_id: str, path: str) -> UploadFile | None:
    return await session.get(UploadFile, (upload_id, path))


async def count_files(session: Session, upload_id: str) -> int:
    return (
        await session.scalar(
            select(func.count()).select_from(UploadFile).where(UploadFile.upload_id == upload_id)
        )
        or 0
    )


async def parts(session: Session, upload_id: str, path: str | None = None) -> Sequence[UploadPart]:
    """Returns the parts of a session in order. If a path is passed, only the parts of that file."""
    query = select(UploadPart).where(UploadPart.upload_id == upload_id)
    if path is not None:
        query = query.where(UploadPart.path == path)
    return (await session.scalars(query.order_by(UploadPart.path, UploadPart.number))).all()


async def part(session: Session, upload_id: str, path: str, number: int) -> UploadPart | None:
    return await session.get(UploadPart, (upload_id, path, number))


async def short_part_before(
    session: Session, upload_id: str, path: str, number: int, part_size: int
) -> bool:
    """Returns True if an earlier part is shorter than `part_size`, which only the last part may
    be.
    """
    return await _any_part(
        session, upload_id, path, UploadPart.number < number, UploadPart.size < part_size
    )


async def part_after(session: Session, upload_id: str, path: str, number: int) -> bool:
    return await _any_part(session, upload_id, path, UploadPart.number > number)


async def _any_part(
    session: Session, upload_id: str, path: str, *conditions: ColumnElement[bool]
) -> bool:
    return (
        await session.scalar(
            select(UploadPart.number)
            .where(UploadPart.upload_id == upload_id, UploadPart.path == path, *conditions)
            .limit(1)
        )
        is not None
    )


async def received_bytes(session: Session, upload_id: str, *, beside: str | None = None) -> int:
    """Returns the bytes of a session's parts, without those of the file `beside`."""
    query = select(func.coalesce(func.sum(UploadPart.size), 0)).where(
        UploadPart.upload_id == upload_id
    )
    if beside is not None:
        query = query.where(UploadPart.path != beside)
    return int(await session.scalar(query) or 0)


async def session_bytes(session: Session, upload_id: str) -> int:
    """Returns the bytes of a session's files. Uses a file's declared size, or its received bytes if
    none was declared.
    """
    received = (
        select(UploadPart.path, func.sum(UploadPart.size).label("bytes"))
        .where(UploadPart.upload_id == upload_id)
        .group_by(UploadPart.path)
        .subquery()
    )
    file_bytes = func.coalesce(UploadFile.size, received.c.bytes, 0)
    statement = (
        select(func.coalesce(func.sum(file_bytes), 0))
        .outerjoin(received, received.c.path == UploadFile.path)
        .where(UploadFile.upload_id == upload_id)
    )
    return int(await session.scalar(statement) or 0)


async def put_part(session: Session, part: UploadPart) -> None:
    """Records a part. Replaces an existing part with the same number."""
    await session.merge(part)
    await session.flush()


async def note_digest(session: Session, file: UploadFile, sha256: bytes) -> None:
    """Records the digest of a file's bytes, unless the file was replaced in the meantime."""
    await session.execute(
        update(UploadFile)
        .where(
            UploadFile.upload_id == file.upload_id,
            UploadFile.path == file.path,
            UploadFile.blob_key == file.blob_key,
        )
        .values(sha256=sha256)
    )


async def drop_parts(
    session: Session, upload_id: str, path: str, first: int = 1, last: int | None = None
) -> None:
    """Deletes the parts of a file with numbers from `first` to `last`."""
    statement = delete(UploadPart).where(
        UploadPart.upload_id == upload_id, UploadPart.path == path, UploadPart.number >= first
    )
    if last is not None:
        statement = statement.where(UploadPart.number <= last)
    await session.execute(statement)


async def drop_file(session: Session, file: UploadFile) -> None:
    """Deletes a file and its parts."""
    await drop_parts(session, file.upload_id, file.path)
    await session.delete(file)
    await session.flush()


async def drop_files(session: Session, upload_id: str) -> None:
    """Deletes all files of a session and their parts."""
    await session.execute(delete(UploadPart).where(UploadPart.upload_id == upload_id))
    await session.execute(delete(UploadFile).where(UploadFile.upload_id == upload_id))


async def any_artifact(session: Session) -> bool:
    return await session.scalar(select(Artifact.id).limit(1)) is not None


async def blob_keys(session: Session) -> set[str]:
    """Returns the blob keys of all files of all uploads."""
    return set(await session.scalars(select(UploadFile.blob_key)))


async def open_folders(session: Session) -> set[tuple[str, str]]:
    """Returns pairs of artifact id and upload id of the open sessions, which may still receive
    bytes.
    """
    statement = select(Upload.artifact_id, Upload.id).where(Upload.status == UploadStatus.OPEN)
    return {(artifact, upload) for artifact, upload in await session.execute(statement)}


async def users(session: Session, artifact_id: str) -> Sequence[str]:
    """Returns the model ids of the deployments with a version that uses an artifact."""
    using = select(DeploymentVersion.deployment_id).where(
        DeploymentVersion.artifact_id == artifact_id
    )
    return (await session.scalars(select(Deployment.model).where(Deployment.id.in_(using)))).all()
