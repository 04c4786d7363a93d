"""Videos: jobs that make a file. Other servers of this kind keep such jobs in memory; here they are
rows.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from stoker.base.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.base.ids import Prefix, new_id
from stoker.media.inline import Inline
from stoker.media.media import Media
from stoker.models.diffusion.video.rules import VideoShape
from stoker.models.tasks.registry import IMAGE_TO_VIDEO
from stoker.platform.jobs import repository as jobs
from stoker.platform.jobs.kind import Outcome
from stoker.platform.quotas.limits import Quota
from stoker.platform.web.context import Platform
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.registry.files import repository as file_rows
from stoker.registry.files import service as files
from stoker.runtime.interface import Call, OnProgress
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.files import File, Purpose
from stoker.store.tables.jobs import JobStatus
from stoker.store.tables.videos import Video
from stoker.tenancy.keys.auth import Reach
from stoker.wire.video_request import VideoAnswer
from stoker.workloads.videos import repository, schemas
from stoker.workloads.videos.context import VideoContext

KEPT = timedelta(days=30)
"""Time for which an ended job is kept."""
POLL_AFTER_MS = 1000

_MP4 = "video/mp4"
_THUMBNAIL = "image/webp"


def fingerprint(body: schemas.VideoCreate) -> str:
    """Returns the SHA-256 of a request's content, regardless of its form."""
    fields = json.dumps(body.model_dump(exclude={"input_reference"}), sort_keys=True)
    digest = hashlib.sha256(fields.encode())
    if reference := body.input_reference:
        source = reference.source
        raw = source.raw if isinstance(source, Inline) else (source or "").encode()
        digest.update(reference.content or raw)
    return digest.hexdigest()


def check_reference(entry: DirectoryEntry, body: schemas.VideoCreate) -> None:
    """Raises `InvalidRequestError` for an image that is unusable or missing."""
    needed = entry.pipeline == IMAGE_TO_VIDEO
    if needed and body.input_reference is None:
        raise InvalidRequestError(
            f"'{entry.model}' makes videos from an image. Send one in 'input_reference'.",
            param="input_reference",
        )
    if not needed and body.input_reference is not None:
        raise InvalidRequestError(
            f"'{entry.model}' makes videos from text alone: leave 'input_reference' out.",
            param="input_reference",
        )


async def keep_reference(
    context: VideoContext, entry: DirectoryEntry, body: schemas.VideoCreate
) -> File | None:
    """Stores the image that a video begins with. `create` adds its row."""
    reference = body.input_reference
    if reference is None or reference.content is None:
        return None
    file = await files.write(
        context,
        account_id=entry.account_id,
        deployment_id=entry.deployment_id,
        purpose=Purpose.REFERENCE,
        content=bytes(reference.content),
        content_type="application/octet-stream",
    )
    # Deleted with its job, however long the job has to wait.
    file.expires_at = file.created_at + KEPT
    return file


async def create(
    session: Session,
    context: VideoContext,
    entry: DirectoryEntry,
    body: schemas.VideoCreate,
    *,
    reference: File | None,
    shape: VideoShape | None,
) -> Video:
    limit = context.settings.jobs_queued
    if await jobs.unfinished(session, Video, entry.deployment_id) >= limit:
        raise RateLimitError(
            f"This deployment has {limit} videos waiting or being made. Try again later.",
            code="queue_full",
            retry_after_s=10,
        )
    await context.quotas.take(session, entry.account_id, Quota.VIDEOS)
    await files.reserve(session, context, entry.account_id, [reference] if reference else [])
    row = Video(
        id=new_id(Prefix.VIDEO),
        account_id=entry.account_id,
        deployment_id=entry.deployment_id,
        model=entry.model,
        pipeline=entry.pipeline,
        prompt=body.prompt,
        parameters=body.parameters(),
        seconds=shape.seconds if shape else body.seconds,
        size=f"{shape.width}x{shape.height}" if shape else body.size,
        status=JobStatus.QUEUED.value,
        progress=0.0,
        tries=0,
        losses=0,
        created_at=db.now(),
    )
    if reference:
        reference.owner_id, row.reference_id = row.id, reference.id
        session.add(reference)
    session.add(row)
    return row


def response(context: VideoContext, row: Video) -> schemas.Video:
    status = JobStatus(row.status)
    percent = int(context.jobs.shown(row) * 100)
    error = None
    if row.error_code:
        error = schemas.VideoError(code=row.error_code, message=row.error_message or "")
    return schemas.Video(
        id=row.id,
        created_at=int(row.created_at.timestamp()),
        completed_at=_seconds(row.completed_at),
        expires_at=_seconds(row.expires_at),
        model=row.model,
        prompt=row.prompt,
        status=status,
        progress=percent if status is JobStatus.COMPLETED else min(99, percent),
        seconds=row.seconds,
        size=row.size,
        error=error,
    )


async def get(session: Session, reach: Reach, video_id: str, *, lock: bool = False) -> Video:
    row = await repository.get(session, reach, video_id, lock=lock)
    if row is None:
        raise NotFoundError("Video not found", code="video_not_found")
    return row


async def content(session: Session, row: Video, variant: schemas.Variant, now: datetime) -> File:
    """Returns the file of a completed video. Raises `ConflictError`, `NotFoundError`."""
    if row.status != JobStatus.COMPLETED:
        raise ConflictError(
            f"The video is {row.status}, not completed: it has no content."
            + (f" {row.error_message}" if row.error_message else ""),
            code="video_not_completed",
        )
    file_id = row.video_id if variant == "video" else row.thumbnail_id
    file = await file_rows.by_id(session, file_id or "")
    if file is None or file.expires_at <= now:
        expired = row.expires_at is not None and row.expires_at <= now
        raise NotFoundError(
            "The video's content has expired; make it again." if expired else None,
            code="video_expired" if expired else "file_not_found",
        )
    return file


async def delete(session: Session, context: VideoContext, row: Video) -> None:
    """Deletes a video with its files. A waiting or running job ends."""
    await session.delete(row)
    await _delete_files(session, context, row.id)
    session.after_commit(lambda: context.jobs.cancel(row.id))


async def forget_ended(platform: Platform, now: datetime) -> None:
    async with platform.database.transaction() as session:
        await repository.forget_ended(session, now - KEPT)


async def _delete_files(session: Session, platform: Platform, video_id: str) -> None:
    owned = await file_rows.owned(session, video_id)
    for file in owned:
        await session.delete(file)
    files.remove_after_commit(session, platform.blobs, owned)


def _seconds(moment: datetime | None) -> int | None:
    return int(moment.timestamp()) if moment else None


@dataclass(frozen=True)
class CompletedVideo:
    """A completed video with its bytes written."""

    answer: VideoAnswer
    video: File
    thumbnail: File


class VideoJob:
    """The `JobKind` of videos."""

    table = Video

    def __init__(self, context: VideoContext) -> None:
        self._context = context

    async def perform(self, row: Video, on_progress: OnProgress) -> CompletedVideo:
        context, settings = self._context, self._context.settings
        CURRENT_CALLER.set(Party(row.account_id))
        call = Call(
            task=row.pipeline,
            items=[{"prompt": row.prompt, "image": await self._reference(row)}],
            parameters=row.parameters,
            single=True,
        )
        entry = context.calls.directory.find(row.deployment_id)
        if entry is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        content = await context.calls.run(
            entry,
            call,
            wait_s=settings.load_timeout_s,
            timeout_s=settings.job_timeout_s,
            on_progress=on_progress,
        )
        answer = msgspec.msgpack.decode(content, type=VideoAnswer)
        video = await self._write(row, Purpose.VIDEO, answer.video, _MP4)
        try:
            thumbnail = await self._write(row, Purpose.THUMBNAIL, answer.thumbnail, _THUMBNAIL)
        except BaseException:
            self._context.blobs.discard(video.blob_key)
            raise
        return CompletedVideo(answer, video, thumbnail)

    def outcome(self, row: Video, made: CompletedVideo) -> Outcome:
        return Outcome(
            {
                "video_id": made.video.id,
                "thumbnail_id": made.thumbnail.id,
                "seconds": made.answer.seconds,
                "size": f"{made.answer.width}x{made.answer.height}",
                "expires_at": made.video.expires_at,
            }
        )

    async def keep(self, session: Session, row: Video, made: CompletedVideo) -> None:
        session.add_all([made.video, made.thumbnail])

    async def ended(self, session: Session, row: Video, error: StokerError | None) -> None:
        if row.reference_id and (file := await file_rows.by_id(session, row.reference_id)):
            await files.delete(session, self._context.blobs, file)

    async def discard(self, made: CompletedVideo) -> None:
        await files.discard(self._context.blobs, [made.video, made.thumbnail])

    async def _reference(self, row: Video) -> Media | None:
        if row.reference_id is None:
            return None
        async with self._context.database.reading() as session:
            file = await file_rows.by_id(session, row.reference_id)
        if file is None:
            raise NotFoundError("The video's input_reference has expired.", code="file_not_found")
        return Media("image", content=await files.read(self._context, file))

    async def _write(self, row: Video, purpose: Purpose, content: bytes, kind: str) -> File:
        return await files.write(
            self._context,
            account_id=row.account_id,
            deployment_id=row.deployment_id,
            purpose=purpose,
            content=content,
            content_type=kind,
            owner_id=row.id,
        )
