"""`/v1/agent`: agents, their runs and the events of runs."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from stoker.base.errors import (
    ConflictError,
    EndpointNotSupportedError,
    InsufficientCreditsError,
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    responses,
)
from stoker.inference.operation import EVENTS
from stoker.platform.web.context import ReadSession, WriteSession
from stoker.platform.web.dependencies import made
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging, json_page
from stoker.platform.web.schemas import Deleted
from stoker.tenancy.keys.auth import AccountId, Caller, KeyedRoute
from stoker.tenancy.usage.funding import funded
from stoker.workloads.agents import repository, run_service, schemas, service, stream
from stoker.workloads.agents.context import ContextDep

PREFIX = "/v1/agent"

router = APIRouter(prefix=PREFIX, tags=["Agents"], route_class=KeyedRoute)


@dataclass(frozen=True)
class _Asking:
    """The caller of a request and the account that it acts for."""

    account_id: AccountId
    caller: Caller
    context: ContextDep


Asking = Annotated[_Asking, made(_Asking)]
Place = Annotated[stream.RunPath, made(stream.RunPath)]


@router.post(
    "",
    status_code=201,
    response_model=schemas.Agent,
    responses=responses(ModelNotFoundError, EndpointNotSupportedError, ConflictError),
)
async def create_agent(
    body: schemas.AgentCreate, asking: Asking, session: WriteSession, idempotent: Idempotent
) -> Response:
    """Create an agent: a deployed chat model with instructions and tools."""

    async def created() -> schemas.Agent:
        row = await service.create(session, asking.context, asking.account_id, asking.caller, body)
        return service.response(row)

    return await idempotent.run(session, created)


@router.get("", response_model=ListResponse[schemas.Agent], responses=responses())
async def list_agents(account_id: AccountId, session: ReadSession, paging: Paging) -> Response:
    """List the account's agents."""
    page = await repository.agents(session, account_id, paging)
    return await json_page(page, service.response)


@router.get("/{agent_id}", responses=responses(NotFoundError))
async def get_agent(agent_id: str, account_id: AccountId, session: ReadSession) -> schemas.Agent:
    """Get an agent."""
    return service.response(await service.get(session, account_id, agent_id))


@router.patch(
    "/{agent_id}",
    responses=responses(NotFoundError, ModelNotFoundError, EndpointNotSupportedError),
)
async def update_agent(
    agent_id: str, body: schemas.AgentUpdate, asking: Asking, session: WriteSession
) -> schemas.Agent:
    """Change an agent. Existing runs continue with the agent as it was when they were created."""
    row = await service.get(session, asking.account_id, agent_id, lock=True)
    await service.update(session, asking.context, asking.caller, row, body)
    return service.response(row)


@router.delete("/{agent_id}", responses=responses(NotFoundError))
async def delete_agent(agent_id: str, account_id: AccountId, context: ContextDep) -> Deleted:
    """Delete an agent and erase all of its runs."""
    await run_service.erase_with_agent(context, account_id, agent_id)
    return Deleted(id=agent_id, object="agent.deleted")


@router.post(
    "/{agent_id}/runs",
    status_code=201,
    response_model=schemas.Run,
    responses=responses(
        InsufficientCreditsError, NotFoundError, EndpointNotSupportedError, ConflictError
    ),
    dependencies=[Depends(funded)],
)
async def create_run(
    agent_id: str,
    body: schemas.RunCreate,
    asking: Asking,
    session: WriteSession,
    idempotent: Idempotent,
) -> Response:
    """Start a run of an agent. The run is durable once this response is sent."""

    async def created() -> schemas.Run:
        agent = await service.get(session, asking.account_id, agent_id, lock=True)
        row = await run_service.create(session, asking.context, agent, asking.caller, body)
        return run_service.response(asking.context, row)

    return await idempotent.run(session, created)


@router.get(
    "/{agent_id}/runs",
    response_model=ListResponse[schemas.Run],
    responses=responses(NotFoundError),
)
async def list_runs(
    agent_id: str,
    account_id: AccountId,
    session: ReadSession,
    context: ContextDep,
    paging: Paging,
) -> Response:
    """List an agent's runs."""
    agent = await service.get(session, account_id, agent_id)
    page = await repository.runs(session, agent.id, paging)
    return await json_page(page, lambda row: run_service.response(context, row))


@router.get("/{agent_id}/runs/{run_id}", responses=responses(NotFoundError))
async def get_run(place: Place, session: ReadSession, context: ContextDep) -> schemas.Run:
    """Get a run: its progress, the calls that it waits for, or how it ended."""
    return run_service.response(context, await place.row(session))


@router.get(
    "/{agent_id}/runs/{run_id}/events",
    response_model=ListResponse[schemas.RunEvent],
    responses=responses(NotFoundError)
    | {
        200: {
            "content": {EVENTS: {"schema": {"type": "string"}}},
            "description": (
                "A page of events. With `Accept: text/event-stream`, all events, including "
                "future ones."
            ),
        }
    },
)
async def list_events(
    request: Request,
    place: Place,
    context: ContextDep,
    paging: Paging,
    last_event_id: Annotated[
        str | None,
        Header(max_length=32, description="For a stream: continue after this event."),
    ] = None,
) -> Response:
    """List the events of a run, or stream them as they happen."""
    if EVENTS in request.headers.get("accept", ""):
        field, event_id = "Last-Event-ID", last_event_id
        # An empty value comes from a stream without event ids, by the field's definition.
        if not event_id:
            field, event_id = "after", paging.after
        return await stream.follow(request, context, place, _after(event_id, field))
    after = _after(paging.after, "after")
    async with context.database.reading() as session:
        return await stream.page(session, context, await place.row(session), after, paging)


def _after(given: str | None, field: str) -> int:
    """Returns the sequence number. 0 means from the beginning."""
    if given is None:
        return 0
    if not given.isascii() or not given.isdecimal() or int(given) >= 2**31:
        raise InvalidRequestError(
            f"'{field}' must be the id of an event, a whole number.", param=field
        )
    return int(given)


@router.post(
    "/{agent_id}/runs/{run_id}/tool-outputs",
    response_model=schemas.Run,
    responses=responses(NotFoundError, ConflictError),
)
async def submit_tool_outputs(
    place: Place,
    body: schemas.ToolOutputs,
    session: WriteSession,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Submit outputs of function calls to a run that waits for them."""

    async def submitted() -> schemas.Run:
        row = await place.row(session, lock=True)
        await run_service.submit(session, context, row, body)
        return run_service.response(context, row)

    return await idempotent.run(session, submitted, status=200)


@router.post("/{agent_id}/runs/{run_id}/cancel", responses=responses(NotFoundError, ConflictError))
async def cancel_run(place: Place, session: WriteSession, context: ContextDep) -> schemas.Run:
    """Cancel a run and keep the steps that it has completed. Cancelling twice is allowed."""
    row = await place.row(session, lock=True)
    await run_service.cancel(session, context, row)
    return run_service.response(context, row)


@router.delete("/{agent_id}/runs/{run_id}", responses=responses(NotFoundError))
async def delete_run(place: Place, context: ContextDep) -> schemas.DeletedRun:
    """Stop a run if it is executing, and erase it with all of its content."""
    async with context.database.transaction() as session:
        row = await place.row(session, lock=True)
        await run_service.erase(session, context, [row.id])
    await context.database.scrub()
    return schemas.DeletedRun(id=row.id)
