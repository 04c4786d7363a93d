"""Answers calls with a short JSON body on their connection, without ASGI messages."""

import asyncio
import functools
import time
from collections.abc import Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.base.config import Settings
from stoker.base.errors import StokerError
from stoker.base.logs import request_id
from stoker.inference.json_bodies import validated
from stoker.inference.operation import EVENTS, JSON, Operation, StreamedAnswer
from stoker.inference.registry import OPERATIONS
from stoker.inference.routes import session_of
from stoker.inference.session import CallSession
from stoker.inference.streaming import STREAM_HEADERS
from stoker.platform.web import error_formats
from stoker.platform.web.error_handlers import error_response
from stoker.platform.web.exchange import EXCHANGE, Exchange, RawHeaders
from stoker.platform.web.http import (
    ClientGoneError,
    RequestListener,
    added_headers,
    last_response,
    record_request,
    request_id_of,
)
from stoker.platform.web.structure import FREE_BYTES

_SLOW = frozenset(
    {
        b"content-encoding",
        b"cookie",
        b"expect",
        b"origin",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Request headers that need a middleware of the app."""
_FORWARDED = frozenset({"x-forwarded-for", "x-forwarded-proto"})
_MAX_LENGTH_DIGITS = 6
_PORT_DIGITS = 5
"""Ports with fewer digits are valid."""


class ShortCalls:
    """ASGI app around the server's app, which answers all but short calls.

    The middlewares of the app take half of the gateway's time for a small call. A short call has a
    plain JSON body of limited size and no header that needs a middleware. Its answer has the same
    bytes as the app's.
    """

    def __init__(
        self,
        app: FastAPI,
        forwarded: Callable[[ASGIApp], ASGIApp],
        metrics: RequestListener,
        settings: Settings,
    ) -> None:
        """
        Args:
            forwarded: wraps an app in the middleware that reads the headers of trusted proxies.
        """
        self._inner = app
        self._app = forwarded(app)
        self._read_forwarded = forwarded(_nothing)
        self._metrics = metrics
        hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._hosts = None if "*" in hosts else hosts
        # The middleware for other origins adds this header to answers to requests without origin.
        self._headers = [(b"vary", b"Origin")] if settings.cors_origins else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange | None = scope.pop(EXCHANGE, None)
        if exchange is not None and scope["method"] == "POST":
            operation = OPERATIONS.get(scope["path"])
            if operation is not None and (headers := self._short(scope["headers"])):
                if not _FORWARDED.isdisjoint(headers.values_by_name):
                    await self._read_forwarded(scope, receive, send)
                await self._answer(exchange, _CallRequest(scope, headers, self._inner), operation)
                return
        await self._app(scope, receive, send)

    def _short(self, raw: list[tuple[bytes, bytes]]) -> "_PlainHeaders | None":
        """Returns the headers of a short call. None for any other call."""
        values: dict[str, str] = {}
        for name, value in raw:
            if name in _SLOW:
                return None
            values[name.decode("latin-1")] = value.decode("latin-1")
        length = values.get("content-length", "")
        is_short = (
            len(values) == len(raw)
            and len(length) < _MAX_LENGTH_DIGITS
            and length.isdecimal()
            and int(length) <= FREE_BYTES
            and values.get("content-type", "").partition(";")[0].strip().lower() == JSON
            and (self._hosts is None or _host_name(values["host"]) in self._hosts)
        )
        return _PlainHeaders(raw, values) if is_short else None

    async def _answer(
        self, exchange: Exchange, request: "_CallRequest", operation: Operation[Any]
    ) -> None:
        scope = request.scope
        identifier = request_id_of(request.headers.get("x-request-id", ""))
        reply = _ShortReply(exchange, scope, identifier, self._headers)
        token = request_id.set(reply.identifier)
        started = time.perf_counter()
        try:
            try:
                await _respond(operation, request, reply)
            except StokerError as error:
                if reply.has_begun:
                    raise
                await reply.send(error_response(error, scope))
        except (asyncio.CancelledError, Exception) as error:
            response = last_response(error, scope)
            if not reply.has_begun:
                await reply.send(response)
        finally:
            seconds = time.perf_counter() - started
            record_request(self._metrics, scope, scope["path"], reply.status, seconds)
            request_id.reset(token)


def _host_name(header: str) -> str:
    """Returns the name in a Host header. Empty for an unusual header, which the app checks."""
    name, colon, port = header.partition(":")
    is_usual = not colon or (port.isdecimal() and len(port) < _PORT_DIGITS)
    return name.lower() if is_usual else ""


async def _nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    return None


class _PlainHeaders(Headers):
    """Headers without repeated names, looked up in a dictionary."""

    def __init__(self, raw: list[tuple[bytes, bytes]], values: dict[str, str]) -> None:
        super().__init__(raw=raw)
        self.values_by_name = values

    def get(self, key: str, default: Any = None) -> Any:
        return self.values_by_name.get(key.lower(), default)

    def getlist(self, key: str) -> list[str]:
        value = self.values_by_name.get(key.lower())
        return [] if value is None else [value]

    def __getitem__(self, key: str) -> str:
        return self.values_by_name[key.lower()]

    def __contains__(self, key: Any) -> bool:
        return key.lower() in self.values_by_name


class _CallRequest(Request):
    def __init__(self, scope: Scope, headers: _PlainHeaders, app: FastAPI) -> None:
        super().__init__(scope)
        scope["app"] = app
        self._headers = headers


class _ShortReply:
    """The answer to a request, with the headers that every answer of the server has."""

    def __init__(
        self, exchange: Exchange, scope: Scope, identifier: str, headers: RawHeaders
    ) -> None:
        """
        Args:
            headers: headers of every answer.
        """
        self.exchange = exchange
        self._headers = headers
        self.identifier = identifier
        self.status = 0
        self._scope = scope
        self.has_begun = False

    async def send(self, response: Response) -> None:
        """Sends a complete response."""
        await self.send_whole(response.status_code, response.raw_headers, bytes(response.body))

    async def send_whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self.has_begun, self.status = True, status
        await self.exchange.send_whole(status, self._completed(headers), body)

    async def begin(self, headers: RawHeaders, first: bytes) -> None:
        """Begins a streamed answer."""
        self.has_begun, self.status = True, 200
        await self.exchange.begin(200, self._completed(headers), first)

    def _completed(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        completed = [
            *headers,
            *self._headers,
            (b"x-request-id", self.identifier.encode("latin-1")),
            (b"x-content-type-options", b"nosniff"),
        ]
        if added := added_headers(self._scope):
            mutable = MutableHeaders(raw=completed)
            for name, value in added.items():
                mutable[name] = value
        return completed


class _Watch:
    """Cancels the current task if the client disconnects, and raises `ClientGoneError` then."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task = asyncio.current_task()
        self._is_gone = False

    def __enter__(self) -> None:
        self._exchange.watch(self._cancel)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exchange.watch(None)
        if self._is_gone and self._task and kind and issubclass(kind, asyncio.CancelledError):
            self._task.uncancel()
            raise ClientGoneError from None

    def _cancel(self) -> None:
        self._is_gone = True
        if self._task:
            self._task.cancel()


async def _respond(operation: Operation[Any], request: Request, reply: _ShortReply) -> None:
    session = await session_of(request)
    body = validated(operation.request, await reply.exchange.read_body())
    with _Watch(reply.exchange):
        answer = await operation.run(session, body)
        if isinstance(answer, StreamedAnswer):
            async with aclosing(answer.parts):
                await _stream(answer, session, request, reply)
            return
    content, media_type = answer
    headers = [(b"content-length", b"%d" % len(content)), _content_type(media_type)]
    await reply.send_whole(200, headers + _reported(session), content)


async def _stream(
    answer: StreamedAnswer, session: CallSession, request: Request, reply: _ShortReply
) -> None:
    first = await anext(answer.parts)
    headers = [_content_type(answer.media_type), *STREAM_HEADERS, *_reported(session)]
    await reply.begin(headers, first)
    exchange = reply.exchange
    try:
        async for part in answer.parts:
            if exchange.is_slow:
                await exchange.drain()
            exchange.send_part(part)
    except StokerError as error:
        if answer.media_type != EVENTS:
            raise
        form = error_formats.format_for(request.scope)
        exchange.send_part(error_formats.event_of(error, form))
    await exchange.end()


@functools.cache
def _content_type(media_type: str) -> tuple[bytes, bytes]:
    value = Response(media_type=media_type).headers["content-type"]
    return b"content-type", value.encode("latin-1")


def _reported(session: CallSession) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value.encode("latin-1")) for name, value in session.answer_headers.items()
    ]
