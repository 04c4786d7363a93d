"""HTTP routes of all operations: headers, body and response of a call, and clients that
disconnect.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.routing import APIRoute

from stoker.base.config import Settings
from stoker.base.errors import CALLING, UnsupportedMediaTypeError, responses
from stoker.inference import bodies
from stoker.inference.calls import Calls
from stoker.inference.operation import Answer, Operation, StreamedAnswer
from stoker.inference.registry import OPERATIONS
from stoker.inference.service_tiers import TIER
from stoker.inference.session import CallSession
from stoker.inference.streaming import Streamed, unless_gone
from stoker.models.tasks.service_tier import ServiceTier
from stoker.platform.web.context import part_of
from stoker.platform.web.prefix import base_url
from stoker.tenancy.keys.auth import ModelCaller, caller_of_model

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)

Prefer = Annotated[
    str | None,
    Header(
        description="`wait=N`: maximum seconds to wait for a cold deployment (RFC 7240). "
        "Other and malformed preferences are ignored, as the RFC specifies.",
    ),
]
TierHeader = Annotated[
    ServiceTier | None,
    Header(
        alias=TIER,
        description="Service tier of the call. A `service_tier` in the body replaces it, unless it "
        "is `auto`. The answer has the used tier in the same header.",
    ),
]


class CallRoute(APIRoute):
    """Route that runs the operation of its path.

    FastAPI normally solves dependencies for each request. This takes longer than all other work of
    the gateway for a call.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return partial(respond, OPERATIONS[self.path])


async def respond(operation: Operation[Any], request: Request) -> Response:
    """Runs an operation for a client.

    Raises the errors of the request, and `ClientGoneError` if the client disconnects.
    """
    session = await session_of(request)
    settings = session.settings
    body = await bodies.read(
        request,
        operation,
        max_files=settings.list_limit if operation.max_files is None else operation.max_files,
        has_media_in_json=operation.has_media_in_json,
    )
    response = await unless_gone(request, _response(request, operation.run(session, body)))
    response.headers.update(session.answer_headers)
    return response


async def session_of(request: Request) -> CallSession:
    """Returns a session for the caller of a request.

    Raises the errors of `caller_of_model` and `CallSession`.
    """
    caller = await caller_of_model(request)
    calls = part_of(request, Calls)
    settings, headers = calls.settings, request.headers
    return CallSession(
        calls,
        caller,
        wait_s=wait_seconds(settings, ",".join(headers.getlist("prefer"))),
        headers=headers,
        base_url=partial(base_url, request, settings.public_url),
    )


async def _response(request: Request, work: Awaitable[Answer]) -> Response:
    """Returns the response once the answer, or its first part, is available.

    Errors before the first part have a status.
    """
    answer = await work
    if isinstance(answer, StreamedAnswer):
        return Streamed(request, await anext(answer.parts), answer.parts, answer.media_type)
    return Response(answer.content, media_type=answer.media_type)


def wait_seconds(settings: Settings, prefer: str | None) -> float:
    """Returns the wait in seconds of a `Prefer: wait=N` header, within the server's limit, or the
    default.
    """
    for preference in prefer.split(",") if prefer else ():
        if match := _WAIT.fullmatch(preference):
            return min(float(match[1]), settings.wait_max_s)
    return min(settings.wait_default_s, settings.wait_max_s)


async def _documented(caller: ModelCaller, prefer: Prefer = None, tier: TierHeader = None) -> None:
    """Documents the headers of all operations. Never called: `CallRoute` handles the requests."""


def _operation_id(operation: Operation[Any], path: str) -> str:
    """Returns the operation id for the OpenAPI document. Each path has a separate one."""
    name = operation.name if path == operation.path else f"{operation.name}_at{path}"
    return name.replace("-", "_").replace("/", "_")


router = APIRouter(route_class=CallRoute)

for _path, _operation in OPERATIONS.items():
    router.add_api_route(
        _path,
        _documented,
        methods=["POST"],
        tags=[_operation.tag],
        summary=_operation.summary,
        name=_operation.name,
        operation_id=_operation_id(_operation, _path),
        description=f"For deployments of the pipeline `{'` or `'.join(_operation.pipelines)}`.",
        response_model=None,
        responses=responses(*CALLING, UnsupportedMediaTypeError),
    )
