"""Endpoints that follow OpenAI's conventions: request shape, route and response types."""

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
    """Maps a content type of the answer to its model. None means text or a file."""
    example: Mapping[str, Any]
    media: Mapping[str, MediaKind] = field(default_factory=dict[str, MediaKind])
    """Fields of the request that accept files in a form."""
    bare: bool = False
    """True if a body may be a bare file."""


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
    """Returns a streamed response once its first part is available.

    Errors of the request appear before the first part, so that they have a status. Raises the
    errors of the parts.
    """
    return Streamed(request, await unless_gone(request, anext(parts)), parts, media_type)


class Streamed(Response):
    """Response that passes on parts as they arrive. A client that disconnects ends the work.

    An error after the first part ends a stream of events with an error event. It ends any other
    stream by closing the connection early.
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
        # Tells proxies not to buffer the answer.
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
