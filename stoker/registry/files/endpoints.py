from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Security
from fastapi.responses import RedirectResponse, Response

from stoker.base.errors import NotFoundError, responses
from stoker.platform.web.context import Platform, PlatformDep, ReadSession, WriteSession
from stoker.platform.web.lists import ListResponse, Paging
from stoker.platform.web.outage import lost_store_reported
from stoker.platform.web.schemas import Deleted
from stoker.registry.files import repository, schemas, service
from stoker.registry.files.content import Content, StoredContent, documented
from stoker.registry.files.schemas import File
from stoker.store import db
from stoker.store.blobs import BlobLostError
from stoker.store.tables import files as models
from stoker.tenancy.keys.auth import ActingFor, KeyedRoute, Within, authenticate, bearer, reach_of

ANY_TYPE = "application/octet-stream"
LINK_S = 300
"""Validity of a bucket's own link in seconds. A redirected client follows it at once."""

router = APIRouter(prefix="/v1/files", tags=["Files"], route_class=KeyedRoute)
links = APIRouter(prefix="/v1/files", tags=["Files"])
"""Routes that also accept a signed link."""


@router.get("", responses=responses())
async def list_files(within: Within, session: ReadSession, paging: Paging) -> ListResponse[File]:
    """List the generated files that have not expired."""
    return (await repository.page(session, within, paging)).response(schemas.response)


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
        # Generated content must not run as a page of this server.
        "content-security-policy": "default-src 'none'; sandbox",
    }
    if link is not None:
        return RedirectResponse(link, headers={**headers, "cache-control": "no-store"})
    options: dict[str, Any] = {
        "media_type": file.content_type,
        "filename": schemas.filename(file),
        "content_disposition_type": "inline",
        "headers": headers,
    }
    if (path := platform.blobs.local_path(file.blob_key)) is not None:
        return Content(path, **options)
    return StoredContent(platform.blobs, file.blob_key, size, file.created_at, **options)
