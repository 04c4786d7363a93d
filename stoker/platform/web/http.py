"""Outermost ASGI layer: request ids, body limits, access log, and Stoker's error format."""

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.base.errors import (
    CapacityError,
    InternalError,
    InvalidRequestError,
    PayloadTooLargeError,
    StokerError,
    UnsupportedMediaTypeError,
)
from stoker.base.ids import Prefix, new_id
from stoker.base.logs import request_id
from stoker.platform.web.disk import full_disk
from stoker.platform.web.encodings import decoded
from stoker.platform.web.error_formats import ErrorFormat, format_for, further_headers
from stoker.platform.web.error_handlers import BodyRefusedError, error_response, no_such_path
from stoker.platform.web.outage import lost_database, lost_store
from stoker.platform.web.structure import FREE_BYTES, Structure

log = logging.getLogger("stoker.http")

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BODY_LIMITS = "stoker.body_limits"
_HEADERS = "stoker.headers"
_MAX_LENGTH_DIGITS = 18
_RETRY_AFTER_STOP_S = 5


CLIENT_GONE = 499
"""Status of nginx for a client that closed the connection first. No standard defines one."""


class ClientGoneError(Exception):
    """Raised if the client has closed the connection. Its work was cancelled."""


@dataclass(slots=True)
class BodyLimits:
    """Limits of one request's body."""

    json: int
    """Maximum bytes of JSON, without embedded media."""
    media: int
    """Maximum bytes of a body that may contain media."""
    now: int | None
    """Limit in bytes that is enforced while the body is read. None means no limit."""
    is_counted: bool = True
    """True if the body's structure is counted as JSON too."""


class RequestListener(Protocol):
    """Listener that is notified of every answered request."""

    def answered(self, route: str | None, method: str, status: int, seconds: float) -> None: ...


class Traced(Protocol):
    """Values that a trace records at the end of a request."""

    status: int
    route: str | None


class RequestTracer(Protocol):
    def request(self, scope: Scope, request_id: str) -> AbstractContextManager[Traced]: ...


_CHOSEN = frozenset({"path", "model"})
"""Path parameters that contain names instead of ids."""


class RequestContext:
    """Middleware that adds an id, a body limit and one log line to every request."""

    def __init__(
        self,
        app: ASGIApp,
        body_limit: int,
        json_limit: int,
        metrics: RequestListener,
        traces: RequestTracer | None,
    ) -> None:
        self.app = app
        self.body_limit = body_limit
        self.json_limit = min(json_limit, body_limit)
        self.metrics = metrics
        self.traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identifier = request_id_of(Headers(scope=scope).get("x-request-id", ""))
        if self.traces is None:
            await self._answer(scope, receive, send, identifier)
            return
        with self.traces.request(scope, identifier) as answered:
            answered.status = await self._answer(scope, receive, send, identifier)
            answered.route = route_of(scope)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, identifier: str) -> int:
        """Runs the app. Returns the status, or 0 if no response was sent."""
        token = request_id.set(identifier)
        scope[_BODY_LIMITS] = BodyLimits(self.json_limit, self.body_limit, self.json_limit)
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = identifier
                headers.setdefault("x-content-type-options", "nosniff")
                for name, value in added_headers(scope).items():
                    headers[name] = value
            await send(message)

        try:
            await self.app(scope, _limited(scope, decoded(scope, receive)), send_with_id)
        finally:
            seconds = time.perf_counter() - started
            record_request(self.metrics, scope, route_of(scope), status, seconds)
            request_id.reset(token)
        return status


def record_request(
    listener: RequestListener, scope: Scope, route: str | None, status: int, seconds: float
) -> None:
    """Counts and logs an answered request. `status` is 0 if no response was sent."""
    method = scope["method"]
    listener.answered(route, method, status, seconds)
    log.info(
        "request",
        extra={
            "method": method,
            "path": logged_path(scope),
            "status": status,
            "ms": round(seconds * 1000, 2),
        },
    )


def logged_path(scope: Scope) -> str:
    """Returns the path to log, without names that clients chose, such as a file's."""
    path: str = scope["path"]
    for name in _CHOSEN & scope.get("path_params", {}).keys():
        before, _, after = path.rpartition(f"/{scope['path_params'][name]}")
        path = f"{before}/{{{name}}}{after}"
    return path


class LastResort:
    """Middleware that answers every request, even if any error occurs inside."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            # Databases and file systems do not accept NUL, so no resource has such a path.
            app = (
                self.app
                if "\0" not in scope["path"]
                else error_response(no_such_path(scope), scope)
            )
            await app(scope, receive, send_on)
        except (asyncio.CancelledError, Exception) as error:
            response = last_response(error, scope)
            if not has_begun:
                await response(scope, receive, send)


def last_response(error: Exception | asyncio.CancelledError, scope: Scope) -> Response:
    """Returns the response to an error that no handler has caught. Logs unexpected errors."""
    if isinstance(error, ClientGoneError | ClientDisconnect):
        # No client reads this response. The log shows why the request ended.
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, asyncio.CancelledError):
        # A request is cancelled only when the server stops, and no task awaits this one.
        # uvicorn would send its own plain-text response.
        return error_response(server_stopping(), scope)
    known_error = full_disk(error) or lost_database(error) or lost_store(error)
    if known_error is None:
        log.error("request failed", exc_info=error)
    return error_response(known_error or InternalError(), scope)


def server_stopping() -> CapacityError:
    return CapacityError(
        "The server is stopping and could not finish this request in time. Send it "
        "again when the server is back.",
        code="server_stopping",
        retry_after_s=_RETRY_AFTER_STOP_S,
    )


class AllowedHosts:
    """Middleware that refuses requests for hosts that are not on the list, in Stoker's error
    format.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self.app = app
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = error_response(InvalidRequestError("Invalid Host header."))

        async def allow(_scope: Scope, _receive: Receive, _send: Send) -> None:
            nonlocal app
            app = self.app

        async def discard(_message: Message) -> None:
            return None

        await TrustedHostMiddleware(allow, self._allowed_hosts)(scope, receive, discard)
        await app(scope, receive, send)


def require_json(request: Request) -> None:
    """Raises `UnsupportedMediaTypeError` if the content type is not JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise UnsupportedMediaTypeError(
            f"This endpoint takes application/json, not {kind[:100] or 'an empty content type'}."
        )


def add_headers(request: Request, headers: Mapping[str, str]) -> None:
    """Adds headers to the response, whether it succeeds or fails."""
    request.scope[_HEADERS] = headers


def added_headers(scope: Scope) -> Mapping[str, str]:
    """Returns the headers of `add_headers`, and those of the client's API."""
    headers: Mapping[str, str] = scope.get(_HEADERS, {})
    is_anthropic = format_for(scope) is ErrorFormat.ANTHROPIC
    return further_headers(headers) if is_anthropic else headers


def body_limits(request: Request) -> BodyLimits:
    return request.scope[_BODY_LIMITS]


def lift_body_limit(request: Request) -> None:
    """Disables the limit for this request. The handler streams the body and counts its bytes
    itself.
    """
    limits = body_limits(request)
    limits.now, limits.is_counted = None, False


def lift_body_limit_for_media(request: Request) -> None:
    """Raises the limit to that of media. The handler counts the JSON part itself."""
    limits = body_limits(request)
    limits.now, limits.is_counted = limits.media, False


def declared_length(headers: Headers) -> int | None:
    """Returns the declared length of the body, or None if the client declares none."""
    header = headers.get("content-length", "")
    return int(header) if header.isdecimal() and len(header) <= _MAX_LENGTH_DIGITS else None


def route_of(scope: Scope) -> str | None:
    """Returns the template of the matched route, such as `/v1/models/{model}`."""
    return getattr(scope.get("route"), "path", None)


def request_id_of(header: str) -> str:
    """Returns the id that a client chose in a header, or a new one."""
    return header if _SANE_ID.fullmatch(header) else new_id(Prefix.REQUEST)


def _limited(scope: Scope, receive: Receive) -> Receive:
    received = 0
    declared = declared_length(Headers(scope=scope))
    limits: BodyLimits = scope[_BODY_LIMITS]
    structure: Structure | None = None

    async def limited_receive() -> Message:
        nonlocal received, structure
        if limits.now is not None and declared is not None and declared > limits.now:
            raise _too_large(limits.now)
        try:
            message = await receive()
        except StokerError as error:
            raise BodyRefusedError(error) from error
        body = message.get("body", b"")
        received += len(body)
        if limits.now is not None and received > limits.now:
            raise _too_large(limits.now)
        if limits.is_counted and (received > FREE_BYTES or message.get("more_body")):
            structure = structure or Structure()
            try:
                structure.add(body)
            except InvalidRequestError as error:
                raise BodyRefusedError(error) from error
        return message

    return limited_receive


def _too_large(limit: int) -> BodyRefusedError:
    message = f"The request body is larger than {limit} bytes, the limit of this server."
    return BodyRefusedError(PayloadTooLargeError(message))
