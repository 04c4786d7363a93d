from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Security
from fastapi.responses import RedirectResponse, Response

from stoker.base.errors import (
    CapacityError,
    ConflictError,
    InsufficientCreditsError,
    NotFoundError,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    responses,
)
from stoker.platform.web.context import Platform, PlatformDep, ReadSession, WriteSession
from stoker.platform.web.forms import ANY_TYPE, FORM
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse
from stoker.platform.web.outage import lost_store_reported
from stoker.platform.web.schemas import Deleted
from stoker.registry.files import creating, repository, schemas, service
from stoker.registry.files.content import Content, StoredContent, documented
from stoker.registry.files.schemas import File, FilePaging
from stoker.store import db
from stoker.store.blobs import BlobLostError
from stoker.store.tables import files as models
from stoker.tenancy.keys.auth import ActingFor, KeyedRoute, Within, authenticate, bearer, reach_of
from stoker.tenancy.usage.funding import funded_caller

LINK_S = 300
"""Validity of a bucket's own link in seconds. A redirected client follows it at once."""

router = APIRouter(prefix="/v1/files", tags=["Files"], route_class=KeyedRoute)
links = APIRouter(prefix="/v1/files", tags=["Files"])
"""Routes that also accept a signed link."""


_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {
                            "type": "string",
                            "enum": [purpose.value for purpose in creating.PURPOSES],
                        },
                        creating.ANCHOR: {"type": "string", "enum": ["created_at"]},
                        creating.SECONDS: {
                            "type": "integer",
                            "minimum": schemas.MIN_KEEP_S,
                            "maximum": schemas.MAX_KEEP_S,
                            "description": "Seconds after which the file expires. Default: 30 days "
                            "for `batch`, never for `user_data`.",
                        },
                    },
                }
            }
        },
    }
}


@router.post(
    "",
    response_model=File,
    responses=responses(
        InsufficientCreditsError,
        ConflictError,
        PayloadTooLargeError,
        UnsupportedMediaTypeError,
        CapacityError,
    ),
    dependencies=[Depends(funded_caller)],
    openapi_extra=_FORM,
)
async def create_file(
    request: Request, within: Within, platform: PlatformDep, idempotent: Idempotent
) -> Response:
    """Upload a file."""
    return await creating.create(platform, request, within, idempotent)


@router.get("", responses=responses())
async def list_files(
    within: Within, session: ReadSession, paging: FilePaging
) -> ListResponse[File]:
    """List the uploaded and generated files that have not expired."""
    page = await repository.page(session, within, paging, paging.purpose)
    return page.response(schemas.response)


@router.get("/{file_id}", responses=responses(NotFoundError))
async def get_file(file_id: str, within: Within, session: ReadSession) -> File:
    """Get a file's metadata."""
    return schemas.response(await service.get(session, within, file_id))


@router.delete("/{file_id}", responses=responses(NotFoundError))
async def delete_file(
    file_id: str, within: Within, session: WriteSession, platform: PlatformDep
) -> Deleted:
    """Delete a file before it expires."""
    file = await service.get(session, within, file_id)
    await service.delete(session, platform.blobs, file)
    return Deleted(id=file.id, object="file")


async def _opened(
    file_id: str,
    request: Request,
    platform: PlatformDep,
    *,
    expires: Annotated[
        int | None, Query(ge=0, le=1 << 40, description="Expiry of a signed link, unix seconds.")
    ] = None,
    signature: Annotated[
        str | None, Query(max_length=64, description="Signature of a signed link.")
    ] = None,
    _scheme: Annotated[object, Security(bearer)] = None,
    x_stoker_account: ActingFor = None,
) -> models.File:
    """Returns the file of a signed link, or a file that the key can access."""
    if expires is not None and platform.secret.signed(
        service.signed_text(file_id, expires), signature or ""
    ):
        return await service.by_link(platform, file_id, expires, db.now())
    caller = await authenticate(request, platform)
    reach = await reach_of(caller, platform, x_stoker_account)
    async with platform.database.reading() as session:
        return await service.get(session, reach, file_id)


@links.api_route(
    "/{file_id}/content",
    methods=["GET"],
    response_class=Content,
    responses=documented("image/png", "image/jpeg", "image/webp", "video/mp4", ANY_TYPE),
)
async def get_content(
    file: Annotated[models.File, Depends(_opened)], platform: PlatformDep
) -> Response:
    """Get a file's content, or ranges of it (RFC 9110, section 14)."""
    return await content(platform, file)


async def content(platform: Platform, file: models.File) -> Content | RedirectResponse:
    """Returns a response with a file's bytes, or a redirect to them. Raises `NotFoundError`, and
    `CapacityError` if the store does not answer.
    """
    try:
        with lost_store_reported():
            size = await platform.blobs.size(file.blob_key)
            link = None
            if platform.settings.blob_redirects:
                link = await platform.blobs.link(file.blob_key, LINK_S)
    except BlobLostError:
        # The file expired after its row was read.
        raise service.gone() from None
    headers = {
        # Links are secrets, so shared caches must not keep the linked content.
        "cache-control": "private, max-age=3600",
        # Content of models and clients must not run as a page of this server.
        "content-security-policy": "default-src 'none'; sandbox",
    }
    if link is not None:
        return RedirectResponse(link, headers={**headers, "cache-control": "no-store"})
    # Models write files without a name. Others are downloads, whatever their client calls them.
    is_made_here = file.filename is None
    options: dict[str, Any] = {
        "media_type": file.content_type if is_made_here else ANY_TYPE,
        "filename": schemas.filename(file),
        "content_disposition_type": "inline" if is_made_here else "attachment",
        "headers": headers,
    }
    if (path := platform.blobs.local_path(file.blob_key)) is not None:
        return Content(path, **options)
    return StoredContent(platform.blobs, file.blob_key, size, file.created_at, **options)
