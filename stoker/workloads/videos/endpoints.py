import asyncio

from fastapi import APIRouter, Request, Response

from stoker.base.errors import (
    CALLING,
    ConflictError,
    NotFoundError,
    UnsupportedMediaTypeError,
    responses,
)
from stoker.inference import bodies
from stoker.inference.operation import JSON, Endpoint
from stoker.inference.streaming import unless_gone
from stoker.models.tasks.registry import VIDEO
from stoker.platform.web.context import ReadSession, WriteSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging, json_page
from stoker.platform.web.schemas import Deleted
from stoker.registry.files import endpoints as files
from stoker.registry.files.content import Content, documented
from stoker.registry.files.service import discard
from stoker.store import db
from stoker.tenancy.keys.auth import KeyedRoute, ModelCaller, Within
from stoker.workloads.videos import repository, service, shapes
from stoker.workloads.videos.context import ContextDep
from stoker.workloads.videos.schemas import Variant, Video, VideoCreate

router = APIRouter(prefix="/v1/videos", tags=["Videos"], route_class=KeyedRoute)

CREATE = Endpoint(
    path="/v1/videos",
    summary="Create a video",
    request=VideoCreate,
    answers={JSON: Video},
    example={"model": "tiny-film", "prompt": "a red circle moves to the right"},
    media={"input_reference": "image"},
)


@router.post(
    "",
    summary=CREATE.summary,
    operation_id="create_video",
    response_model=Video,
    responses=responses(*CALLING, UnsupportedMediaTypeError),
)
async def create_video(
    request: Request,
    caller: ModelCaller,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Create a video. The video is a job that is durable once this response is sent."""
    context.calls.credits.check(caller.account_id)
    body = await bodies.read(request, CREATE, max_files=1)
    entry = await context.calls.target(caller, body.model, VIDEO)
    service.check_reference(entry, body)
    fingerprint = await asyncio.to_thread(service.fingerprint, body)
    if known := await idempotent.known(200, fingerprint):
        return known
    shape = await shapes.drawn(context, entry, body)
    await unless_gone(request, context.media.collect(body))
    reference = await service.keep_reference(context, entry, body)
    created: Video | None = None

    async def create() -> Video:
        nonlocal created
        row = await service.create(session, context, entry, body, reference=reference, shape=shape)
        created = service.response(context, row)
        return created

    try:
        async with context.database.transaction() as session:
            answer = await idempotent.run(session, create, 200, fingerprint)
    finally:
        if reference and created is None:
            await discard(context.blobs, [reference])
    context.jobs.wake()
    return answer


@router.get("", response_model=ListResponse[Video], responses=responses())
async def list_videos(
    within: Within, session: ReadSession, context: ContextDep, paging: Paging
) -> Response:
    """List videos, including waiting and failed ones."""
    page = await repository.page(session, within, paging)
    return await json_page(page, lambda row: service.response(context, row))


@router.get("/{video_id}", responses=responses(NotFoundError))
async def get_video(
    video_id: str,
    within: Within,
    session: ReadSession,
    context: ContextDep,
    response: Response,
) -> Video:
    """Get a video's state: its progress, or how it ended."""
    video = service.response(context, await service.get(session, within, video_id))
    # Tells OpenAI's clients when to poll again.
    response.headers["openai-poll-after-ms"] = str(service.POLL_AFTER_MS)
    return video


@router.get(
    "/{video_id}/content",
    response_class=Content,
    responses=responses(ConflictError) | documented("video/mp4", "image/webp"),
)
async def get_video_content(
    video_id: str, within: Within, context: ContextDep, variant: Variant = "video"
) -> Response:
    """Get a completed video (MP4, H.264) or its thumbnail (WebP), or ranges of it."""
    async with context.database.reading() as session:
        row = await service.get(session, within, video_id)
        file = await service.content(session, row, variant, db.now())
    return await files.content(context, file)


@router.delete("/{video_id}", responses=responses(NotFoundError))
async def delete_video(
    video_id: str, within: Within, session: WriteSession, context: ContextDep
) -> Deleted:
    """Delete a video with its content. A video that is being made is stopped."""
    row = await service.get(session, within, video_id, lock=True)
    await service.delete(session, context, row)
    return Deleted(id=row.id, object="video.deleted")
