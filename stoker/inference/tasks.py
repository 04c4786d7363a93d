"""The gateway side of the task endpoints: one handler, a route a task."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Request, Response
from fastapi.routing import APIRoute

from stoker.config import Settings
from stoker.deployments.directory import Entry
from stoker.errors import (
    CALLING,
    EndpointNotSupportedError,
    InvalidRequestError,
    UnsupportedMediaTypeError,
    responses,
)
from stoker.inference import bodies
from stoker.keys.auth import Caller, authenticate
from stoker.runtime.interface import Call
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.registry import TASKS, endpoints
from stoker.web.context import Services, ServicesDep
from stoker.web.context import services as services_of

T = TypeVar("T")

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)

CLIENT_GONE = 499
"""nginx's status for a client that closed the connection first; no standard has one."""

Prefer = Annotated[
    str | None,
    Header(
        description="`wait=N`: how long to wait for a cold deployment, seconds (RFC 7240). "
        "Other preferences, and what is none, are ignored, as that says.",
    ),
]


class TaskRoute(APIRoute):
    """Calls its handler directly.

    FastAPI's general way, solving dependencies for each request, takes longer than all else that
    the gateway does for a call. The handler's signature still documents the route.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def call(request: Request) -> Response:
            services = services_of(request)
            caller = await authenticate(request, services)
            services.credits.check(caller.account_id)
            prefer = ",".join(request.headers.getlist("prefer"))
            try:
                return await self.endpoint(request, caller, services, prefer)
            except ClientGoneError:
                # Nobody reads this; the log shows why the request ended.
                return Response(status_code=CLIENT_GONE)

        return call


router = APIRouter(tags=["Tasks"], route_class=TaskRoute)


def _handler(task: Task) -> Callable[..., Awaitable[Response]]:
    async def handle(
        request: Request, caller: Caller, services: ServicesDep, prefer: Prefer = None
    ) -> Response:
        settings = services.settings
        body = await bodies.read(request, task, max_files=settings.list_limit)
        entry = services.directory.resolve(caller, body.model)
        check_pipeline(entry, task.pipelines)
        items, single = body.items()
        _check_inputs(settings, body, items)
        call = Call(
            task=task.name,
            items=items,
            parameters=body.parameters(),
            single=single,
            finishing=body.finishing() | {"model": entry.model},
        )
        content = await unless_gone(request, _run(services, entry, body, call, prefer))
        return Response(content, media_type="application/json")

    return handle


async def _run(
    services: Services, entry: Entry, body: TaskRequest, call: Call, prefer: str | None
) -> bytes:
    settings = services.settings
    await services.media.collect(body)
    return await services.runtime.call(
        entry.deployment_id,
        call,
        wait_s=wait_seconds(settings, prefer),
        timeout_s=settings.inference_timeout_s,
    )


def check_pipeline(entry: Entry, pipelines: Collection[str]) -> None:
    """Raise `EndpointNotSupportedError` where a deployment is of none of these pipelines."""
    if entry.pipeline not in pipelines:
        paths = ", ".join(endpoints(entry.pipeline)) or "none of this server"
        raise EndpointNotSupportedError(
            f"Endpoint not supported: '{entry.model}' is deployed for {entry.pipeline}, "
            f"served by {paths}."
        )


def _check_inputs(settings: Settings, body: TaskRequest, items: list[Any]) -> None:
    limit = body.max_items or settings.list_limit
    if len(items) > limit:
        field = body.input_fields[0]
        raise InvalidRequestError(
            f"'{field}' has {len(items)} items; the limit is {limit}.",
            param=field,
        )
    for path, text in body.texts():
        if len(text) > settings.text_limit_chars:
            raise InvalidRequestError(
                f"'{path}' has {len(text)} characters; the limit is {settings.text_limit_chars}.",
                param=path,
            )


def wait_seconds(settings: Settings, prefer: str | None) -> float:
    """The wait of a `Prefer: wait=N` header, within the server's ceiling, or the default."""
    for preference in (prefer or "").split(","):
        if match := _WAIT.fullmatch(preference):
            return min(float(match[1]), settings.wait_max_s)
    return min(settings.wait_default_s, settings.wait_max_s)


class ClientGoneError(Exception):
    """The client has closed the connection; its work was cancelled."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await the work, and cancel it when the client goes away. Raises `ClientGoneError` then."""
    handler = asyncio.current_task()
    watch = asyncio.ensure_future(_cancel_when_gone(request, handler))
    try:
        return await work
    except asyncio.CancelledError:
        if handler and watch.done() and not watch.cancelled():
            handler.uncancel()
            raise ClientGoneError from None
        raise
    finally:
        watch.cancel()


async def _cancel_when_gone(request: Request, handler: "asyncio.Task[Any] | None") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if handler:
        handler.cancel()


def _operation(task: Task, path: str) -> str:
    """The operation's id in the OpenAPI document, where each path has its own."""
    name = task.name if path == task.path else f"{task.name}_at{path}"
    return name.replace("-", "_").replace("/", "_")


for _task, _path in [(task, path) for task in TASKS.values() for path in task.paths]:
    router.add_api_route(
        _path,
        _handler(_task),
        methods=["POST"],
        summary=_task.summary,
        name=_task.name,
        operation_id=_operation(_task, _path),
        description=f"For deployments of the pipeline `{'` or `'.join(_task.pipelines)}`.",
        response_model=None,
        responses=responses(*CALLING, UnsupportedMediaTypeError),
    )
