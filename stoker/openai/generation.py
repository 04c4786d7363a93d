"""The routes of generated text: one handler for all conventions, whole answers and streams."""

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from stoker.auth import Caller
from stoker.context import ServicesDep
from stoker.errors import (
    CALLING,
    StokerError,
    UnsupportedMediaTypeError,
    from_validation,
    responses,
)
from stoker.http import require_json
from stoker.inference import (
    CLIENT_GONE,
    ClientGoneError,
    Prefer,
    TaskRoute,
    check_pipeline,
    unless_gone,
    wait_seconds,
)
from stoker.openai import chat, completions
from stoker.openai import responses as responses_api
from stoker.openai.messages import check_images
from stoker.replica.llm.answers import sse
from stoker.replica.llm.families import IMAGE_TEXT_TO_TEXT
from stoker.replica.llm.wire import Generation
from stoker.tasks.registry import GENERATING


class Asked(Protocol):
    """A request for generated text."""

    model: str | None

    def generation(self, answer: dict[str, Any]) -> Generation: ...


@dataclass(frozen=True, kw_only=True)
class Convention:
    path: str
    summary: str
    request: type[BaseModel]
    answer: type[BaseModel]
    prefix: str
    """Of the answers' ids."""
    example: Mapping[str, Any]


CONVENTIONS = (
    Convention(
        path="/v1/chat/completions",
        summary="Create a chat completion",
        request=chat.ChatRequest,
        answer=chat.ChatCompletion,
        prefix="chatcmpl-",
        example=chat.EXAMPLE,
    ),
    Convention(
        path="/v1/completions",
        summary="Create a completion",
        request=completions.CompletionRequest,
        answer=completions.Completion,
        prefix="cmpl-",
        example=completions.EXAMPLE,
    ),
    Convention(
        path="/v1/responses",
        summary="Create a response",
        request=responses_api.ResponseRequest,
        answer=responses_api.ResponseObject,
        prefix="resp_",
        example=responses_api.EXAMPLE,
    ),
)

router = APIRouter(tags=["Generated text"], route_class=TaskRoute)


def _handler(convention: Convention) -> Callable[..., Awaitable[Response]]:
    async def handle(
        request: Request, caller: Caller, services: ServicesDep, prefer: Prefer = None
    ) -> Response:
        require_json(request)
        body = _parsed(convention, await request.body())
        entry = services.directory.resolve(caller, body.model)
        check_pipeline(entry, GENERATING)
        answer = {
            "id": f"{convention.prefix}{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": entry.model,
        }
        generation = body.generation(answer)
        images = list(generation.media())
        check_images(images, taken=entry.pipeline == IMAGE_TEXT_TO_TEXT)
        limits: dict[str, float] = {
            "wait_s": wait_seconds(services.settings, prefer),
            "timeout_s": services.settings.inference_timeout_s,
        }
        try:
            if images:
                await unless_gone(request, services.media.collect(generation))
            if not generation.stream:
                work = services.runtime.call(entry.deployment_id, generation, **limits)
                content = await unless_gone(request, work)
                return Response(content, media_type="application/json")
            parts = services.runtime.stream(entry.deployment_id, generation, **limits)
            # Whatever is wrong with the request shows before the first part: it has a status then.
            first = await unless_gone(request, anext(parts))
        except ClientGoneError:
            # Nobody reads this; the log shows why the request ended.
            return Response(status_code=CLIENT_GONE)
        return EventStream(request, first, parts)

    return handle


def _parsed(convention: Convention, body: bytes) -> Asked:
    model: Any = convention.request
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation([*error.errors()], model.model_fields) from error


class EventStream(Response):
    """Server-sent events, passed on as they come. A client that goes away ends the work."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, first: bytes, parts: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._request = request
        self._first = first
        self._parts = parts
        # For proxies that would collect the answer before they pass it on.
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts):
            try:
                await unless_gone(self._request, self._send(send))
            except ClientGoneError:
                return

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await send(_part(self._first))
        try:
            async for part in self._parts:
                await send(_part(part))
        except StokerError as error:
            await send(_part(sse.event(error.body())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(content: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": True}


for _convention in CONVENTIONS:
    router.add_api_route(
        _convention.path,
        _handler(_convention),
        methods=["POST"],
        summary=_convention.summary,
        operation_id=_convention.summary.lower().replace(" a ", " ").replace(" ", "_"),
        description=f"For deployments of the pipeline `{'` or `'.join(GENERATING)}`.",
        response_model=None,
        responses=responses(*CALLING, UnsupportedMediaTypeError),
    )
