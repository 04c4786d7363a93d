"""OpenAI's uploads: a file in parts."""

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from stoker.base.errors import (
    CapacityError,
    ConflictError,
    InsufficientCreditsError,
    NotFoundError,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    responses,
)
from stoker.platform.web.context import PlatformDep, ReadSession, WriteSession
from stoker.platform.web.forms import FORM
from stoker.platform.web.idempotency import Idempotent
from stoker.registry.files import upload_repository, uploads
from stoker.registry.files.schemas import (
    FileUpload,
    FileUploadComplete,
    FileUploadCreate,
    FileUploadPart,
    FileUploadState,
)
from stoker.tenancy.keys.auth import KeyedRoute, Within
from stoker.tenancy.usage.funding import funded_caller

router = APIRouter(prefix="/v1/uploads", tags=["Files"], route_class=KeyedRoute)

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@router.post(
    "",
    response_model=FileUpload,
    responses=responses(
        InsufficientCreditsError, ConflictError, PayloadTooLargeError, CapacityError
    ),
    dependencies=[Depends(funded_caller)],
)
async def create_file_upload(
    body: FileUploadCreate,
    within: Within,
    session: WriteSession,
    platform: PlatformDep,
    idempotent: Idempotent,
) -> Response:
    """Start to upload a file in parts. The upload expires after an hour."""

    async def created() -> FileUpload:
        return FileUpload.of(await uploads.create(session, platform, within, body))

    return await idempotent.run(session, created, 200)


@router.get("/{file_upload_id}", responses=responses(NotFoundError))
async def get_file_upload(
    file_upload_id: str, within: Within, session: ReadSession
) -> FileUploadState:
    """Get an upload with its received parts, to continue after an interruption."""
    upload = await uploads.get(session, within, file_upload_id)
    parts = await upload_repository.parts(session, [upload.id])
    shown = await uploads.shown(session, upload)
    return FileUploadState(**dict(shown), parts=[FileUploadPart.of(part) for part in parts])


@router.post(
    "/{file_upload_id}/parts",
    response_model=FileUploadPart,
    responses=responses(
        InsufficientCreditsError,
        NotFoundError,
        ConflictError,
        PayloadTooLargeError,
        UnsupportedMediaTypeError,
        CapacityError,
    ),
    dependencies=[Depends(funded_caller)],
    openapi_extra=_FORM,
)
async def add_file_upload_part(
    file_upload_id: str,
    request: Request,
    within: Within,
    platform: PlatformDep,
    idempotent: Idempotent,
) -> Response:
    """Upload a part of up to 64 MiB. Parts may come in any order and in parallel."""
    return await uploads.add_part(platform, request, within, file_upload_id, idempotent)


@router.post(
    "/{file_upload_id}/complete",
    responses=responses(NotFoundError, ConflictError, PayloadTooLargeError, CapacityError),
)
async def complete_file_upload(
    file_upload_id: str, body: FileUploadComplete, within: Within, platform: PlatformDep
) -> FileUpload:
    """Join the parts to a file, in the order of `part_ids`."""
    return await uploads.complete(platform, within, file_upload_id, body)


@router.post("/{file_upload_id}/cancel", responses=responses(NotFoundError, ConflictError))
async def cancel_file_upload(
    file_upload_id: str, within: Within, session: WriteSession, platform: PlatformDep
) -> FileUpload:
    """Cancel an upload and delete its parts."""
    return FileUpload.of(await uploads.cancel(session, platform.blobs, within, file_upload_id))
