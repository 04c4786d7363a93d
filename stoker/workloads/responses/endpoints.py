"""`/v1/responses/{response_id}`: stored responses."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from stoker.base.errors import InvalidRequestError, NotFoundError, responses
from stoker.inference.openai.response_object import ResponseObject
from stoker.inference.operation import EVENTS
from stoker.inference.streaming import streamed
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web import idempotency
from stoker.platform.web.context import Platform, ReadSession, WriteSession, part
from stoker.platform.web.dependencies import made
from stoker.platform.web.lists import ListResponse, Paging
from stoker.platform.web.schemas import Deleted
from stoker.store import db
from stoker.store.tables.jobs import UNFINISHED
from stoker.store.tables.responses import ResponseStatus
from stoker.tenancy.keys.auth import KeyedRoute, Within
from stoker.workloads.responses import content
from stoker.workloads.responses.following import get
from stoker.workloads.responses.keeper import StoredResponses

router = APIRouter(
    prefix="/v1/responses/{response_id}", tags=["Generated text"], route_class=KeyedRoute
)


@dataclass(frozen=True, kw_only=True)
class ResponseContext(Platform):
    jobs: JobRunner[Any, Any]
    keeper: StoredResponses


ContextDep = Annotated[ResponseContext, part(ResponseContext)]


@dataclass(frozen=True)
class EventsQuery:
    stream: Annotated[bool, Query(description="Send the events of a background response.")] = False
    starting_after: Annotated[
        int | None, Query(ge=0, le=1 << 31, description="Continue after this sequence number.")
    ] = None


Following = Annotated[EventsQuery, made(EventsQuery)]


class StoredItem(BaseModel):
    """An item of a response's input, as it was sent."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str


@router.get(
    "",
    operation_id="get_response",
    response_model=ResponseObject,
    responses=responses(NotFoundError)
    | {
        200: {
            "content": {EVENTS: {"schema": {"type": "string"}}},
            "description": "The response. With `stream=true`, its events.",
        }
    },
)
async def get_response(
    request: Request,
    response_id: str,
    within: Within,
    context: ContextDep,
    follow: Following,
) -> Response:
    """Get a stored response."""
    stream, starting_after = follow.stream, follow.starting_after
    if starting_after is not None and not stream:
        raise InvalidRequestError("'starting_after' needs 'stream=true'.", param="starting_after")
    async with context.database.reading() as session:
        row = await get(session, within, response_id)
    if stream:
        if not row.is_background:
            raise InvalidRequestError(
                'Only events of responses with "background": true can be read again.',
                param="stream",
            )
        after = -1 if starting_after is None else starting_after
        return await streamed(request, context.keeper.follow(row.account_id, row.id, after))
    return _response(content.response_of(context.secret, row))


@router.get("/input_items", operation_id="list_input_items", responses=responses(NotFoundError))
async def list_input_items(
    response_id: str, within: Within, session: ReadSession, context: ContextDep, paging: Paging
) -> ListResponse[StoredItem]:
    """List the items of a response's own input, without those of earlier responses."""
    row = await get(session, within, response_id)
    items = content.sealer(context.secret, row).unseal(row.request)["input"]
    if paging.order == "desc":
        items = items[::-1]
    if paging.after:
        places = [index for index, item in enumerate(items) if item["id"] == paging.after]
        if not places:
            raise InvalidRequestError("'after' is the id of no item.", param="after")
        items = items[places[0] + 1 :]
    data = [StoredItem.model_validate(item) for item in items[: paging.limit]]
    return ListResponse(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(items) > paging.limit,
    )


@router.post(
    "/cancel",
    operation_id="cancel_response",
    response_model=ResponseObject,
    responses=responses(NotFoundError),
)
async def cancel_response(
    response_id: str, within: Within, session: WriteSession, context: ContextDep
) -> Response:
    """Cancel a background response. A response that has ended stays as it is."""
    row = await get(session, within, response_id, lock=True)
    if not row.is_background:
        raise InvalidRequestError('Only responses with "background": true can be cancelled.')
    if row.status in UNFINISHED:
        row.status, row.completed_at = ResponseStatus.CANCELLED.value, db.now()
        row.lock_token = row.lock_expires_at = None
        session.after_commit(lambda: context.jobs.cancel(response_id))
    return _response(content.response_of(context.secret, row))


@router.delete("", operation_id="delete_response", responses=responses(NotFoundError))
async def delete_response(response_id: str, within: Within, context: ContextDep) -> Deleted:
    """Delete a stored response with its content. Work on it is stopped."""
    async with context.database.transaction() as session:
        row = await get(session, within, response_id, lock=True)
        await idempotency.erase(session, [response_id])
        await session.delete(row)
        session.after_commit(lambda: context.jobs.cancel(response_id))
    await context.database.scrub()
    return Deleted(id=response_id, object="response")


def _response(response: dict[str, Any]) -> Response:
    return Response(content.encoded(response), media_type="application/json")
