from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.convertors import Convertor, register_url_convertor

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
from stoker.platform.web.http import lift_body_limit
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging
from stoker.platform.web.schemas import Deleted
from stoker.registry.artifacts import completion, layout, receiving, repository, schemas, service
from stoker.registry.artifacts.message import Address, UploadBody
from stoker.registry.artifacts.parts import too_large
from stoker.registry.artifacts.schemas import (
    Artifact,
    ArtifactAnswer,
    ArtifactCreate,
    ArtifactUpdate,
    Part,
    ReceivedFile,
    Upload,
    UploadCreate,
    UploadOpened,
)
from stoker.tenancy.keys.auth import AccountId, KeyedRoute
from stoker.tenancy.usage.funding import funded

MAX_PARTS = 100_000
_DIGITS = 18
"""Maximum number of digits of a part number, with leading zeros. More than any valid number has."""


class _PartNumber(Convertor[int]):
    """Path convertor for digits of any length. Starlette's own convertor parses all of them, which
    Python refuses for long strings.
    """

    regex = "[0-9]+"

    def convert(self, value: str) -> int:
        return int(value) if len(value) <= _DIGITS else MAX_PARTS + 1

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("part", _PartNumber())

router = APIRouter(prefix="/v1/model-artifacts", tags=["Model artifacts"], route_class=KeyedRoute)

_RAW_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    "parameters": [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": description,
        }
        for name, description in (
            ("Content-Range", "`bytes FIRST-LAST/TOTAL`: the byte range of the file in this body."),
            (
                "Content-Digest",
                ("Digest of this body as `sha-256=:BASE64:` (RFC 9530). The server checks it."),
            ),
        )
    ],
}
_RECEIVING = responses(
    InsufficientCreditsError,
    NotFoundError,
    ConflictError,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    CapacityError,
)


async def _address(artifact_id: str, upload_id: str, path: str, account_id: AccountId) -> Address:
    return Address(account_id=account_id, artifact_id=artifact_id, upload_id=upload_id, path=path)


FileAddress = Annotated[Address, Depends(_address)]


@router.post("", status_code=201, response_model=Artifact, responses=responses(ConflictError))
async def create_artifact(
    body: ArtifactCreate,
    account_id: AccountId,
    session: WriteSession,
    platform: PlatformDep,
    idempotent: Idempotent,
) -> Response:
    """Create an artifact. Model files can then be uploaded for it."""

    async def created() -> Artifact:
        return Artifact.of(await service.create(session, platform.quotas, account_id, body))

    return await idempotent.run(session, created)


@router.get("", responses=responses())
async def list_artifacts(
    account_id: AccountId, session: ReadSession, paging: Paging
) -> ListResponse[Artifact]:
    """List the account's artifacts."""
    page = await repository.page(session, account_id, paging)
    by_id = {artifact.id: artifact for artifact in await service.shown(session, *page.rows)}
    return page.response(lambda row: by_id[row.id])


@router.get("/{artifact_id}", responses=responses(NotFoundError))
async def get_artifact(artifact_id: str, account_id: AccountId, session: ReadSession) -> Artifact:
    """Get an artifact."""
    (artifact,) = await service.shown(session, await service.get(session, account_id, artifact_id))
    return artifact


@router.get(
    "/{artifact_id}/card",
    response_class=Response,
    responses={
        **responses(NotFoundError),
        200: {"content": {"text/markdown": {"schema": {"type": "string"}}}},
    },
)
async def get_card(artifact_id: str, account_id: AccountId, platform: PlatformDep) -> Response:
    """Get the model card: the uploaded README.md, up to 1 MiB of it."""
    headers = {
        # The card's content cannot run as a page of this server.
        "content-security-policy": "default-src 'none'; sandbox",
        "content-disposition": 'inline; filename="README.md"',
        "cache-control": "private, no-cache",
    }
    content = await service.card(platform, account_id, artifact_id)
    return Response(content, media_type="text/markdown", headers=headers)


@router.patch("/{artifact_id}", responses=responses(NotFoundError))
async def update_artifact(
    artifact_id: str, body: ArtifactUpdate, account_id: AccountId, session: WriteSession
) -> Artifact:
    """Rename an artifact."""
    row = await service.update(session, account_id, artifact_id, body)
    (artifact,) = await service.shown(session, row)
    return artifact


@router.delete("/{artifact_id}", responses=responses(NotFoundError, ConflictError))
async def delete_artifact(
    artifact_id: str, account_id: AccountId, session: WriteSession, platform: PlatformDep
) -> Deleted:
    """Delete an artifact and its files. No deployment may use it."""
    artifact = await service.delete(session, platform.blobs, account_id, artifact_id)
    return Deleted(id=artifact.id, object="model_artifact.deleted")


@router.post(
    "/{artifact_id}/uploads",
    status_code=201,
    response_model=UploadOpened,
    responses=responses(
        InsufficientCreditsError, NotFoundError, ConflictError, PayloadTooLargeError, CapacityError
    ),
    dependencies=[Depends(funded)],
)
async def start_upload(
    artifact_id: str,
    account_id: AccountId,
    session: WriteSession,
    platform: PlatformDep,
    idempotent: Idempotent,
    *,
    body: UploadCreate | None = None,
) -> Response:
    """Open an upload session. The artifact's files stay live until the session is completed."""
    declared = body.size_bytes if body else None
    if declared and declared > receiving.session_limit(platform.settings):
        raise too_large(receiving.session_limit(platform.settings))

    async def created() -> UploadOpened:
        artifact, upload = await service.open_upload(
            session, platform, account_id, artifact_id, declared
        )
        return UploadOpened(
            upload_id=upload.id,
            message=f"PUT the files to /v1/model-artifacts/{artifact.id}/uploads/{upload.id}/files/"
            "{path}, then POST complete.",
            artifact=Artifact.of(artifact),
            part_size=upload.part_size,
        )

    return await idempotent.run(session, created)


@router.get("/{artifact_id}/uploads/{upload_id}", responses=responses(NotFoundError, ConflictError))
async def get_upload(
    artifact_id: str, upload_id: str, account_id: AccountId, session: ReadSession
) -> Upload:
    """Get an upload session with its files and their received bytes."""
    _, upload = await service.get_upload(session, account_id, artifact_id, upload_id)
    files = await repository.files(session, upload_id)
    parts = await repository.parts(session, upload_id)
    return Upload.of(upload, layout.by_file(files, parts, upload.part_size))


@router.delete(
    "/{artifact_id}/uploads/{upload_id}", responses=responses(NotFoundError, ConflictError)
)
async def abandon_upload(
    artifact_id: str,
    upload_id: str,
    account_id: AccountId,
    session: WriteSession,
    platform: PlatformDep,
) -> Deleted:
    """Abandon an open or failed session. The artifact keeps its previous files."""
    upload = await service.abandon(session, platform.blobs, account_id, artifact_id, upload_id)
    return Deleted(id=upload.id, object="upload.deleted")


@router.post(
    "/{artifact_id}/uploads/{upload_id}/complete",
    responses=responses(NotFoundError, ConflictError, CapacityError),
)
async def complete_upload(
    artifact_id: str, upload_id: str, account_id: AccountId, platform: PlatformDep
) -> ArtifactAnswer:
    """Complete a session. Its files are inspected, and the artifact becomes ready or failed."""
    artifact = await completion.complete(platform, account_id, artifact_id, upload_id)
    return ArtifactAnswer(message=completion.message(artifact), artifact=Artifact.of(artifact))


# Must precede the route for whole files: its path would also match '/parts/3'.
@router.put(
    "/{artifact_id}/uploads/{upload_id}/files/{path:path}/parts/{number:part}",
    responses=_RECEIVING,
    dependencies=[Depends(funded)],
    openapi_extra=_RAW_BODY,
)
async def put_part(
    address: FileAddress,
    number: Annotated[int, Path(ge=1, le=MAX_PARTS)],
    request: Request,
    platform: PlatformDep,
) -> Part:
    """Upload one part of a file. Parts may come in any order and in parallel. Repeating a part
    changes nothing.
    """
    lift_body_limit(request)
    return await receiving.put_part(platform, address, number, UploadBody.of(request))


@router.put(
    "/{artifact_id}/uploads/{upload_id}/files/{path:path}",
    responses=_RECEIVING,
    dependencies=[Depends(funded)],
    openapi_extra=_RAW_BODY,
)
async def put_file(address: FileAddress, request: Request, platform: PlatformDep) -> ReceivedFile:
    """Upload a whole file, or continue from an offset with Content-Range."""
    lift_body_limit(request)
    return await receiving.put_file(platform, address, UploadBody.of(request))


@router.delete(
    "/{artifact_id}/uploads/{upload_id}/files/{path:path}",
    responses=responses(NotFoundError, ConflictError),
)
async def delete_file(address: FileAddress, platform: PlatformDep) -> Deleted:
    """Remove a file from an open session, for example one that caused the files to be refused."""
    await receiving.remove_file(platform, address)
    return Deleted(id=address.path, object="upload_file.deleted")


@router.head(
    "/{artifact_id}/uploads/{upload_id}/files/{path:path}",
    responses=responses(NotFoundError, ConflictError),
)
async def head_file(address: FileAddress, session: ReadSession) -> Response:
    """Return the number of received bytes of a file in the header `upload-offset`."""
    file = await receiving.get_file(session, address)
    return Response(headers=schemas.resumption(file))
