import asyncio

from fastapi import APIRouter, Depends

from stoker.base.errors import (
    ConflictError,
    InsufficientCreditsError,
    NotFoundError,
    responses,
)
from stoker.platform.web.context import ReadSession
from stoker.registry.deployments import service as deployments
from stoker.tenancy.keys.auth import AccountId, KeyedRoute
from stoker.tenancy.usage.funding import funded
from stoker.workloads.evaluation.checks import service
from stoker.workloads.evaluation.checks.context import ContextDep
from stoker.workloads.evaluation.checks.schemas import Checks, ChecksUpdate, Report

router = APIRouter(
    prefix="/v1/deployments/{deployment_id}/checks", tags=["Checks"], route_class=KeyedRoute
)


@router.put("", responses=responses(NotFoundError))
async def put_checks(
    deployment_id: str, body: ChecksUpdate, account_id: AccountId, context: ContextDep
) -> Checks:
    """Set the expected answers of a deployment, in place of earlier ones."""
    async with context.database.reading() as session:
        row = await deployments.get(session, account_id, deployment_id)
    await asyncio.to_thread(service.check, row.pipeline, body.checks)
    await context.judges.check_schemas(account_id, service.schemas_of(body.checks))
    async with context.database.transaction() as session:
        return await service.put(session, context.quotas, account_id, deployment_id, body.checks)


@router.get("", responses=responses(NotFoundError))
async def get_checks(deployment_id: str, account_id: AccountId, session: ReadSession) -> Checks:
    """Get a deployment's checks and the report of their last run."""
    return await service.get(session, account_id, deployment_id)


@router.post(
    "/run",
    responses=responses(NotFoundError, ConflictError, InsufficientCreditsError),
    dependencies=[Depends(funded)],
)
async def run_checks(deployment_id: str, account_id: AccountId, context: ContextDep) -> Report:
    """Run all of a deployment's checks now. Waits for a model that is not loaded."""
    return await service.run(context, account_id, deployment_id)
