"""Responses to clients that may disconnect: streams, and work that ends with its client."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from stoker.base.errors import StokerError
from stoker.inference.operation import EVENTS
from stoker.platform.web import error_formats
from stoker.platform.web.http import ClientGoneError

T = TypeVar("T")

STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Headers of a streamed answer. They tell proxies not to buffer it."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Awaits the work and cancels it if the client disconnects. Raises `ClientGoneError` in that
    case.
    """
    handler = asyncio.current_task()
    watch = asyncio.create_task(_cancel_when_gone(request, handler))
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
        del self.headers["content-length"]
        for name, value in STREAM_HEADERS:
            self.headers[name.decode()] = value.decode()

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
            form = error_formats.format_for(self._request.scope)
            await send(_part(error_formats.event_of(error, form)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(content: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": True}
