"""An endpoint that follows OpenAI's conventions: its shape, its route, its answers' ways out."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from stoker.base.errors import CALLING, StokerError, UnsupportedMediaTypeError, responses
from stoker.inference.call import unless_gone
from stoker.media.media import MediaKind
from stoker.platform.web.http import ClientGoneError
from stoker.wire import sse

Asked_co = TypeVar("Asked_co", bound=BaseModel, covariant=True)

EVENTS = "text/event-stream"


@dataclass(frozen=True, kw_only=True)
class Convention(Generic[Asked_co]):
    path: str
    summary: str
    request: type[Asked_co]
    answers: Mapping[str, type[BaseModel] | None]
    """Content type of an answer → what it is; None: text or a file."""
    example: Mapping[str, Any]
    media: Mapping[str, MediaKind] = field(default_factory=dict[str, MediaKind])
    """Fields of the request that take files, in a form."""
    bare: bool = False
    """Whether a body may be a bare file."""


def add_route(
    router: APIRouter,
    convention: Convention[Any],
    pipelines: Collection[str],
    handler: Callable[..., Awaitable[Response]],
) -> None:
    router.add_api_route(
        convention.path,
        handler,
        methods=["POST"],
        summary=convention.summary,
        operation_id=convention.summary.lower().replace(" a ", " ").replace(" ", "_"),
        description=f"For deployments of the pipeline `{'` or `'.join(pipelines)}`.",
        response_model=None,
        responses=responses(*CALLING, UnsupportedMediaTypeError),
    )


async def streamed(
    request: Request, parts: AsyncGenerator[bytes], media_type: str = EVENTS
) -> "Streamed":
    """Parts as an answer, once there is one: whatever is wrong with the request shows before it,
    and has a status then. Raises what the parts do.
    """
    return Streamed(request, await unless_gone(request, anext(parts)), parts, media_type)


class Streamed(Response):
    """Parts of an answer, passed on as they come. A client that goes away ends the work.

    An error after the first part ends a stream of events with an event that tells it, and any
    other stream by closing the connection before its end.
    """

    def __init__(
        self,
        request: Request,
        first: bytes,
        parts: AsyncGenerator[bytes],
        media_type: str = EVENTS,
    ) -> None:
        super().__init__(media_type=media_type)
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
            if self.media_type != EVENTS:
                raise
            await send(_part(sse.event(error.body())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(content: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": True}
