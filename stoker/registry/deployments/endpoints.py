from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import AfterValidator

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
from stoker.registry.deployments import (
    adapters,
    creating,
    describing,
    listing,
    repository,
    service,
    versions,
)
from stoker.registry.deployments.context import ContextDep
from stoker.registry.deployments.schemas import (
    Deployment,
    DeploymentCreate,
    DeploymentUpdate,
    Event,
    LogLines,
)
from stoker.runtime.observed import Status
from stoker.store.db import NO_CONTROL
from stoker.store.tables.deployments import Desired
from stoker.tenancy.keys.auth import AccountId, KeyedRoute
from stoker.tenancy.usage.funding import funded


def _of_deployment(status: Status | None) -> Status | None:
    """Raises `ValueError` for an unknown status, and for a status of workers only."""
    known = [other for other in Status if other is not Status.ASLEEP]
    if status is None or status in known:
        return status
    why = (
        "a deployment is never asleep, only its workers are"
        if status is Status.ASLEEP
        else f"a deployment is never '{status}'"
    )
    raise ValueError(f"{why}. Valid: {', '.join(known)}")


router = APIRouter(prefix="/v1/deployments", tags=["Deployments"], route_class=KeyedRoute)


@router.post(
    "",
    status_code=201,
    response_model=Deployment,
    responses=responses(InsufficientCreditsError, NotFoundError, ConflictError, CapacityError),
    dependencies=[Depends(funded)],
)
async def create_deployment(
    body: DeploymentCreate, account_id: AccountId, context: ContextDep, idempotent: Idempotent
) -> Response:
    """Deploy a model. It can be called once this response is sent."""
    if (body.source or body.adapter_of) and (known := await idempotent.known(201)):
        return known
    base = await adapters.examined(context, account_id, body)
    folder = await creating.folder_of(context, body)

    async def created() -> Deployment:
        row = await creating.create(session, context, account_id, body, folder=folder, base=base)
        return describing.response(context, row)

    async with context.database.transaction() as session:
        return await idempotent.run(session, created)


@router.get("", responses=responses())
async def list_deployments(
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
    paging: Paging,
    *,
    search: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=128,
            pattern=NO_CONTROL,
            description="Only deployments whose model or pipeline contains this text.",
        ),
    ] = None,
    status: Annotated[
        Status | None,
        AfterValidator(_of_deployment),
        Query(description="Only deployments with this status. `asleep` is a worker's."),
    ] = None,
) -> ListResponse[Deployment]:
    """List the account's deployments."""
    page = await listing.page(session, context, account_id, paging, search=search, status=status)
    return page.response(lambda row: describing.response(context, row))


@router.get("/{deployment_id}", responses=responses(NotFoundError))
async def get_deployment(
    deployment_id: str, account_id: AccountId, session: ReadSession, context: ContextDep
) -> Deployment:
    """Get a deployment with its observed state."""
    return describing.response(context, await service.get(session, account_id, deployment_id))


@router.patch("/{deployment_id}", responses=responses(NotFoundError, ConflictError, CapacityError))
async def update_deployment(
    deployment_id: str,
    body: DeploymentUpdate,
    account_id: AccountId,
    context: ContextDep,
) -> Deployment:
    """Change a deployment. Another engine, device, dtype or config creates a version. The version
    takes over between two requests once it has passed its checks. It takes over at once if nothing
    is loaded.
    """
    folder = await service.folder_again(context, account_id, deployment_id, body)
    async with context.database.transaction() as session:
        row = await service.update(session, context, account_id, deployment_id, body, folder=folder)
    return describing.response(context, row)


@router.delete("/{deployment_id}", responses=responses(NotFoundError, ConflictError))
async def delete_deployment(
    deployment_id: str, account_id: AccountId, context: ContextDep
) -> Deleted:
    """Delete a deployment. Its calls in flight finish, then its replicas end."""
    async with context.database.transaction() as session:
        removed = await service.delete(session, context, account_id, deployment_id)
    await versions.end(context, removed)
    return Deleted(id=deployment_id, object="deployment.deleted")


@router.post(
    "/{deployment_id}/start",
    responses=responses(InsufficientCreditsError, NotFoundError),
    dependencies=[Depends(funded)],
)
async def start_deployment(
    deployment_id: str, account_id: AccountId, session: WriteSession, context: ContextDep
) -> Deployment:
    """Start a stopped deployment, so that it accepts calls again."""
    row = await service.set_desired(session, context, account_id, deployment_id, Desired.RUNNING)
    return describing.response(context, row)


@router.post("/{deployment_id}/stop", responses=responses(NotFoundError))
async def stop_deployment(
    deployment_id: str, account_id: AccountId, session: WriteSession, context: ContextDep
) -> Deployment:
    """End a deployment's replicas and refuse its calls until it is started."""
    row = await service.set_desired(session, context, account_id, deployment_id, Desired.STOPPED)
    return describing.response(context, row)


@router.get("/{deployment_id}/logs", responses=responses(NotFoundError))
async def deployment_logs(
    deployment_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
    tail: Annotated[int, Query(ge=1, le=1000, description="How many lines.")] = 100,
) -> LogLines:
    """Get the last log lines of the deployment's replicas."""
    row = await service.get(session, account_id, deployment_id)
    return LogLines(data=await context.runtime.log_lines(row.id, tail))


@router.get("/{deployment_id}/events", responses=responses(NotFoundError))
async def deployment_events(
    deployment_id: str, account_id: AccountId, session: ReadSession, paging: Paging
) -> ListResponse[Event]:
    """List the changes of the deployment's observed state."""
    row = await service.get(session, account_id, deployment_id)
    page = await repository.events(session, row.id, paging)
    return page.response(Event.model_validate)
