import asyncio

from fastapi import APIRouter, Depends, Response

from stoker.base.errors import (
    ConflictError,
    InsufficientCreditsError,
    NotFoundError,
    RateLimitError,
    responses,
)
from stoker.platform.web.context import ReadSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging
from stoker.registry.deployments import service as deployments
from stoker.tenancy.keys.auth import AccountId, KeyedRoute
from stoker.tenancy.usage.funding import funded
from stoker.workloads.evaluation.replay import examples
from stoker.workloads.evaluation.trials import repository, service
from stoker.workloads.evaluation.trials.context import ContextDep
from stoker.workloads.evaluation.trials.schemas import Trial, TrialCreate

router = APIRouter(
    prefix="/v1/deployments/{deployment_id}/trials", tags=["Trials"], route_class=KeyedRoute
)


@router.post(
    "",
    status_code=201,
    response_model=Trial,
    responses=responses(InsufficientCreditsError, NotFoundError, ConflictError, RateLimitError),
    dependencies=[Depends(funded)],
)
async def create_trial(
    deployment_id: str,
    body: TrialCreate,
    account_id: AccountId,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Measure the model on each engine and in each precision. The trial is a job that is durable
    once this response is sent. Its work yields to calls.
    """
    async with context.database.reading() as session:
        row = await deployments.get(session, account_id, deployment_id)
    examples.path_of(row.pipeline)
    if body.examples is not None:
        await asyncio.to_thread(examples.check, row.pipeline, body.examples)

    async def create() -> Trial:
        made = await service.create(session, context, account_id, deployment_id, body)
        return service.response(context, made)

    async with context.database.transaction() as session:
        answer = await idempotent.run(session, create)
    context.jobs.wake()
    return answer


@router.get("", responses=responses(NotFoundError))
async def list_trials(
    deployment_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
    paging: Paging,
) -> ListResponse[Trial]:
    """List a deployment's trials. The last twenty are kept."""
    await deployments.get(session, account_id, deployment_id)
    page = await repository.page(session, deployment_id, paging)
    return page.response(lambda row: service.response(context, row))


@router.get("/{trial_id}", responses=responses(NotFoundError))
async def get_trial(
    deployment_id: str,
    trial_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
) -> Trial:
    """Get a trial with its measurements so far."""
    trial = await service.get(session, account_id, deployment_id, trial_id)
    return service.response(context, trial)
