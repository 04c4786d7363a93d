from fastapi import APIRouter, Depends, Response

from stoker.base.errors import (
    CapacityError,
    ConflictError,
    ForbiddenError,
    HubError,
    InsufficientCreditsError,
    NotFoundError,
    PayloadTooLargeError,
    responses,
)
from stoker.platform.web.context import WriteSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.schemas import Deleted
from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts.imports import service
from stoker.registry.artifacts.imports.context import ContextDep
from stoker.registry.artifacts.imports.schemas import ImportCreate
from stoker.registry.artifacts.schemas import ArtifactAnswer
from stoker.tenancy.keys.auth import AccountId, KeyedRoute
from stoker.tenancy.usage.funding import funded

router = APIRouter(
    prefix="/v1/model-artifacts/{artifact_id}/imports",
    tags=["Model artifacts"],
    route_class=KeyedRoute,
)


@router.post(
    "",
    status_code=202,
    response_model=ArtifactAnswer,
    responses=responses(
        InsufficientCreditsError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        PayloadTooLargeError,
        HubError,
        CapacityError,
    ),
    dependencies=[Depends(funded)],
)
async def start_import(
    artifact_id: str,
    body: ImportCreate,
    account_id: AccountId,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Import a revision of a hub's repository. The import is a job that is durable once this
    response is sent. It ends like a completed upload.
    """
    service.refuse_off(context)
    if known := await idempotent.known(202):
        return known
    async with context.database.reading() as session:
        artifact = await artifacts.get(session, account_id, artifact_id)
        artifacts.refuse_ingesting(artifact)
        await artifacts.refuse_used(session, artifact)
    snapshot = await service.look(context, body)

    async def create() -> ArtifactAnswer:
        imported = await service.create(
            session, context, account_id, artifact_id, body, snapshot=snapshot
        )
        return ArtifactAnswer(
            message=f"{len(snapshot.files)} files of commit {snapshot.commit} are being "
            f"fetched. GET /v1/model-artifacts/{artifact_id} reports the progress.",
            artifact=imported,
        )

    async with context.database.transaction() as session:
        answer = await idempotent.run(session, create, 202)
    context.jobs.wake()
    return answer


@router.delete("/{import_id}", responses=responses(NotFoundError, ConflictError))
async def cancel_import(
    artifact_id: str,
    import_id: str,
    account_id: AccountId,
    session: WriteSession,
    context: ContextDep,
) -> Deleted:
    """Cancel an import. The artifact keeps its previous files."""
    await service.cancel(session, context, account_id, artifact_id, import_id)
    return Deleted(id=import_id, object="model_artifact.import.deleted")
