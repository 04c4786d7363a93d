"""The gateway side of the task endpoints: one handler, a route a task."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from stoker.auth import Caller, authenticate
from stoker.config import Settings
from stoker.context import Services, ServicesDep
from stoker.context import services as services_of
from stoker.deployments.directory import Entry
from stoker.errors import (
    CALLING,
    EndpointNotSupportedError,
    InvalidRequestError,
    UnsupportedMediaTypeError,
    from_validation,
    responses,
)
from stoker.http import require_json
from stoker.runtime.interface import Call
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.registry import TASKS, endpoints

T = TypeVar("T")

CLIENT_GONE = 499
"""nginx's status for a client that closed the connection first; no standard has one."""

Prefer = Annotated[
    str | None,
    Header(
        max_length=256,
        description="`wait=N`: how long to wait for a cold deployment, seconds (RFC 7240).",
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
            return await self.endpoint(request, caller, services, request.headers.get("prefer"))

        return call


router = APIRouter(tags=["Tasks"], route_class=TaskRoute)


def _handler(task: Task) -> Callable[..., Awaitable[Response]]:
    async def handle(
        request: Request, caller: Caller, services: ServicesDep, prefer: Prefer = None
    ) -> Response:
        require_json(request)
        body = parse(task.request, await request.body())
        entry = services.directory.resolve(caller, body.model)
        check_endpoint(entry, task)
        items, single = body.items()
        _check_inputs(services.settings, items, single=single)
        call = Call(
            pipeline=task.pipeline, items=items, parameters=body.parameters(), single=single
        )
        try:
            content = await unless_gone(request, _run(services, entry, call, prefer))
        except ClientGoneError:
            # Nobody reads this; the log shows why the request ended.
            return Response(status_code=CLIENT_GONE)
        return Response(content, media_type="application/json")

    return handle


async def _run(services: Services, entry: Entry, call: Call, prefer: str | None) -> bytes:
    settings = services.settings
    return await services.runtime.call(
        entry.deployment_id,
        call,
        wait_s=wait_seconds(settings, prefer),
        timeout_s=settings.inference_timeout_s,
    )


def parse(model: type[TaskRequest], body: bytes) -> TaskRequest:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation([*error.errors()], model.model_fields) from error


def check_endpoint(entry: Entry, task: Task) -> None:
    if entry.pipeline != task.pipeline:
        paths = ", ".join(endpoints(entry.pipeline)) or "none of this server"
        raise EndpointNotSupportedError(
            f"Endpoint not supported: '{entry.model}' is deployed for {entry.pipeline}, "
            f"served by {paths}."
        )


def _check_inputs(settings: Settings, items: list[Any], *, single: bool) -> None:
    if len(items) > settings.list_limit:
        raise InvalidRequestError(
            f"'inputs' has {len(items)} items; the limit is {settings.list_limit}.",
            param="inputs",
        )
    for index, item in enumerate(items):
        if isinstance(item, str) and len(item) > settings.text_limit_chars:
            param = "inputs" if single else f"inputs[{index}]"
            raise InvalidRequestError(
                f"'{param}' has {len(item)} characters; the limit is {settings.text_limit_chars}.",
                param=param,
            )


def wait_seconds(settings: Settings, prefer: str | None) -> float:
    """The wait of a `Prefer: wait=N` header, within the server's ceiling, or the default."""
    for preference in (prefer or "").split(","):
        if match := re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*', preference, re.IGNORECASE):
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


for _task in TASKS.values():
    router.add_api_route(
        _task.path,
        _handler(_task),
        methods=["POST"],
        summary=_task.summary,
        name=_task.pipeline,
        operation_id=_task.pipeline.replace("-", "_"),
        description=f"For deployments of the pipeline `{_task.pipeline}`.",
        response_model=None,
        responses=responses(*CALLING, UnsupportedMediaTypeError),
    )
