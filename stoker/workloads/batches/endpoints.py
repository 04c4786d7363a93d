from fastapi import APIRouter, Response

from stoker.base.errors import ConflictError, InsufficientCreditsError, NotFoundError, responses
from stoker.platform.web.context import ReadSession, WriteSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging, json_page
from stoker.tenancy.keys.auth import KeyedRoute, ModelCaller, Within
from stoker.workloads.batches import repository, service
from stoker.workloads.batches.context import ContextDep
from stoker.workloads.batches.schemas import Batch, BatchCreate

router = APIRouter(prefix="/v1/batches", tags=["Batches"], route_class=KeyedRoute)


@router.post(
    "",
    response_model=Batch,
    responses=responses(NotFoundError, ConflictError, InsufficientCreditsError),
)
async def create_batch(
    body: BatchCreate,
    caller: ModelCaller,
    session: WriteSession,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Create a batch. Its input file is validated in the background."""
    context.calls.credits.check(caller.account_id)
    service.check_endpoint(body.endpoint)

    async def create() -> Batch:
        row = await service.create(session, context, caller, body)
        return service.response(row)

    session.after_commit(context.jobs.wake)
    return await idempotent.run(session, create, 200)


@router.get("", response_model=ListResponse[Batch], responses=responses())
async def list_batches(within: Within, session: ReadSession, paging: Paging) -> Response:
    """List batches."""
    page = await repository.page(session, within, paging)
    return await json_page(page, service.response)


@router.get("/{batch_id}", responses=responses(NotFoundError))
async def get_batch(batch_id: str, within: Within, session: ReadSession) -> Batch:
    """Get a batch: its state, its counts, and its result files."""
    return service.response(await service.get(session, within, batch_id))


@router.post("/{batch_id}/cancel", responses=responses(NotFoundError, ConflictError))
async def cancel_batch(
    batch_id: str, within: Within, session: WriteSession, context: ContextDep
) -> Batch:
    """Cancel a batch. It is `cancelling` until the lines that are being computed have ended."""
    row = await service.get(session, within, batch_id, lock=True)
    service.cancel(session, context, row)
    return service.response(row)
