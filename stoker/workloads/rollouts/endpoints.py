from fastapi import APIRouter, Depends, Response

from stoker.base.errors import (
    CapacityError,
    ConflictError,
    InsufficientCreditsError,
    NotFoundError,
    responses,
)
from stoker.platform.web.context import ReadSession, WriteSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging
from stoker.platform.web.schemas import Deleted
from stoker.registry.deployments import describing, versions
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments.schemas import Deployment, Traffic
from stoker.tenancy.keys.auth import AccountId, KeyedRoute
from stoker.tenancy.usage.funding import funded
from stoker.workloads.rollouts import repository, service
from stoker.workloads.rollouts.context import ContextDep
from stoker.workloads.rollouts.schemas import Rollback, Version, VersionComparison, VersionCreate

router = APIRouter(
    prefix="/v1/deployments/{deployment_id}", tags=["Versions"], route_class=KeyedRoute
)


@router.post(
    "/versions",
    status_code=202,
    response_model=Version,
    responses=responses(InsufficientCreditsError, NotFoundError, ConflictError, CapacityError),
    dependencies=[Depends(funded)],
)
async def create_version(
    deployment_id: str,
    body: VersionCreate,
    account_id: AccountId,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Create a version. It is loaded, tried and checked, and then takes over between two requests.
    The rollout is a job that is durable once this response is sent.
    """
    if body.source and (known := await idempotent.known(202)):
        return known
    folder = await service.folder_of(context, account_id, deployment_id, body)

    async def create() -> Version:
        row = await deployments.get(session, account_id, deployment_id, lock=True)
        made = await service.create(session, context, row, body, folder)
        return service.response(context, made)

    async with context.database.transaction() as session:
        return await idempotent.run(session, create, 202)


@router.get("/versions", responses=responses(NotFoundError))
async def list_versions(
    deployment_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
    paging: Paging,
) -> ListResponse[Version]:
    """List a deployment's versions, newest first."""
    await deployments.get(session, account_id, deployment_id)
    page = await repository.page(session, deployment_id, paging)
    return page.response(lambda row: service.response(context, row))


@router.get("/versions/{version_id}", responses=responses(NotFoundError))
async def get_version(
    deployment_id: str,
    version_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
) -> Version:
    """Get a version: its progress, or why it failed."""
    version = await service.get(session, account_id, deployment_id, version_id)
    return service.response(context, version)


@router.get("/versions/{version_id}/comparison", responses=responses(NotFoundError))
async def compare_version(
    deployment_id: str,
    version_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
) -> VersionComparison:
    """Compare a version's answers to mirrored calls with those of the live version."""
    return await service.comparison(session, context, account_id, deployment_id, version_id)


@router.post(
    "/versions/{version_id}/promote",
    responses=responses(InsufficientCreditsError, NotFoundError, ConflictError),
    dependencies=[Depends(funded)],
)
async def promote_version(
    deployment_id: str,
    version_id: str,
    account_id: AccountId,
    session: WriteSession,
    context: ContextDep,
) -> Version:
    """Promote a version. It takes over at once if it is loaded. Otherwise it is loaded and checked
    first.
    """
    version = await service.promote(session, context, account_id, deployment_id, version_id)
    return service.response(context, version)


@router.post(
    "/rollback",
    responses=responses(InsufficientCreditsError, NotFoundError, ConflictError),
    dependencies=[Depends(funded)],
)
async def roll_back(
    deployment_id: str,
    body: Rollback,
    account_id: AccountId,
    session: WriteSession,
    context: ContextDep,
) -> Version:
    """Roll back to the version that was live before, or to an earlier one."""
    version = await service.roll_back(session, context, account_id, deployment_id, body.version)
    return service.response(context, version)


@router.delete("/versions/{version_id}", responses=responses(NotFoundError, ConflictError))
async def delete_version(
    deployment_id: str, version_id: str, account_id: AccountId, context: ContextDep
) -> Deleted:
    """Delete a version that is not live. A version in preparation is abandoned."""
    async with context.database.transaction() as session:
        row = await service.remove(session, context, account_id, deployment_id, version_id)
    context.directory.release(deployment_id)
    context.mirrors.forget(version_id)
    await versions.end(context, [row])
    return Deleted(id=row.id, object="deployment.version.deleted")


@router.put("/traffic", responses=responses(NotFoundError, ConflictError, CapacityError))
async def put_traffic(
    deployment_id: str,
    body: Traffic,
    account_id: AccountId,
    session: WriteSession,
    context: ContextDep,
) -> Deployment:
    """Distribute a deployment's calls among versions."""
    row = await service.direct(session, context, account_id, deployment_id, body)
    return describing.response(context, row)
