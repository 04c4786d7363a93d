"""The outermost ASGI layer: request ids, body limits, access log, errors in our shape."""

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.base.errors import (
    MOST_ERRORS,
    CapacityError,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    StokerError,
    UnsupportedMediaTypeError,
    from_validation,
)
from stoker.base.ids import Prefix, new_id
from stoker.base.logs import request_id
from stoker.platform.web.disk import full_disk
from stoker.platform.web.encodings import decoded
from stoker.platform.web.outage import lost_database, lost_store
from stoker.platform.web.structure import FREE_BYTES, Structure

log = logging.getLogger("stoker.http")

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BODY_LIMITS = "stoker.body_limits"
_HEADERS = "stoker.headers"
_MAX_LENGTH_DIGITS = 18
_METHODS = "methods_of_paths"
_RETRY_AFTER_STOP_S = 5


CLIENT_GONE = 499
"""nginx's status for a client that closed the connection first; no standard has one."""


class ClientGoneError(Exception):
    """The client has closed the connection; its work was cancelled."""


@dataclass(slots=True)
class BodyLimits:
    """Of one request's body."""

    json: int
    """Bytes of JSON beside the media in it."""
    media: int
    """Bytes of a body that may hold media."""
    now: int | None
    """What is enforced while it is read; None: nothing."""
    is_counted: bool = True
    """Whether its structure is counted, too, as that of JSON."""


class RequestListener(Protocol):
    """Is notified of every request that was answered."""

    def answered(self, route: str | None, method: str, status: int, seconds: float) -> None: ...


class Traced(Protocol):
    """What a trace wants to know of a request in the end."""

    status: int
    route: str | None


class RequestTracer(Protocol):
    def request(self, scope: Scope, request_id: str) -> AbstractContextManager[Traced]: ...


_CHOSEN = frozenset({"path", "model"})
"""Parameters of paths that are names and no ids."""


class RequestContext:
    """Gives every request an id, a body limit and one log line."""

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
        identifier = _request_id(scope)
        if self.traces is None:
            await self._answer(scope, receive, send, identifier)
            return
        with self.traces.request(scope, identifier) as answered:
            answered.status = await self._answer(scope, receive, send, identifier)
            answered.route = route_of(scope)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, identifier: str) -> int:
        """Returns the status; 0 where none was sent."""
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
                for name, value in scope.get(_HEADERS, {}).items():
                    headers[name] = value
            await send(message)

        try:
            await self.app(scope, _limited(scope, decoded(scope, receive)), send_with_id)
        finally:
            seconds = time.perf_counter() - started
            self.metrics.answered(route_of(scope), scope["method"], status, seconds)
            log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "path": logged_path(scope),
                    "status": status,
                    "ms": round(seconds * 1000, 2),
                },
            )
            request_id.reset(token)
        return status


def logged_path(scope: Scope) -> str:
    """A request's path as it is logged: without names that clients chose, such as a file's."""
    path: str = scope["path"]
    for name in _CHOSEN & scope.get("path_params", {}).keys():
        before, _, after = path.rpartition(f"/{scope['path_params'][name]}")
        path = f"{before}/{{{name}}}{after}"
    return path


class LastResort:
    """Gives every request an answer, whatever happens within."""

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
            # No database and no file system takes a NUL, so nothing can have such a path.
            app = self.app if "\0" not in scope["path"] else error_response(_no_such_path(scope))
            await app(scope, receive, send_on)
        except (ClientGoneError, ClientDisconnect):
            # Nobody reads this; the log shows why the request ended.
            if not has_begun:
                await Response(status_code=CLIENT_GONE)(scope, receive, send)
        except asyncio.CancelledError:
            # Nothing but the server's end cancels a request, and nobody waits for this task:
            # uvicorn would answer with a plain text of its own.
            if not has_begun:
                await error_response(_stopping())(scope, receive, send)
        except Exception as error:
            told = full_disk(error) or lost_database(error) or lost_store(error)
            if told is None:
                log.exception("request failed")
            if not has_begun:
                await error_response(told or InternalError())(scope, receive, send)


def _stopping() -> CapacityError:
    return CapacityError(
        "The server stops, and this was not done when the time for that was over. Send it again "
        "when it is back.",
        code="server_stopping",
        retry_after_s=_RETRY_AFTER_STOP_S,
    )


class AllowedHosts:
    """Answers requests for hosts that are not on the list with an error in our shape."""

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
    """Refuse a body that says it is something else than JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise UnsupportedMediaTypeError(
            f"This endpoint takes application/json, not {kind[:100] or 'an empty content type'}."
        )


def add_headers(request: Request, headers: Mapping[str, str]) -> None:
    """Have the answer carry these, whatever it will be."""
    request.scope[_HEADERS] = headers


def body_limits(request: Request) -> BodyLimits:
    return request.scope[_BODY_LIMITS]


def request_of(path: str, body: bytes) -> Request:
    """A request for JSON that the server makes to itself; its client never goes away."""
    limits = BodyLimits(len(body), len(body), len(body))
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        _BODY_LIMITS: limits,
    }
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for message in messages:
            return message
        return await asyncio.Event().wait()  # pyright: ignore[reportReturnType]

    return Request(scope, receive)


def lift_body_limit(request: Request) -> None:
    """Leave the limit to this handler, which streams the body and counts for itself."""
    limits = body_limits(request)
    limits.now, limits.is_counted = None, False


def lift_body_limit_for_media(request: Request) -> None:
    """Take a body as large as media are. What is JSON of it, this handler counts for itself."""
    limits = body_limits(request)
    limits.now, limits.is_counted = limits.media, False


def declared_length(scope: Scope) -> int | None:
    """The length of the body, where the client says it before."""
    given = Headers(scope=scope).get("content-length", "")
    return int(given) if given.isdecimal() and len(given) <= _MAX_LENGTH_DIGITS else None


def route_of(scope: Scope) -> str | None:
    """The template of the route that a request was given to, such as `/v1/models/{model}`."""
    return getattr(scope.get("route"), "path", None)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else new_id(Prefix.REQUEST)


def _limited(scope: Scope, receive: Receive) -> Receive:
    received = 0
    declared = declared_length(scope)
    limits: BodyLimits = scope[_BODY_LIMITS]
    structure: Structure | None = None

    async def limited_receive() -> Message:
        nonlocal received, structure
        if limits.now is not None and declared is not None and declared > limits.now:
            raise _too_large(limits.now)
        try:
            message = await receive()
        except StokerError as error:
            raise _BodyRefused(error) from error
        body = message.get("body", b"")
        received += len(body)
        if limits.now is not None and received > limits.now:
            raise _too_large(limits.now)
        if limits.is_counted and (received > FREE_BYTES or message.get("more_body")):
            structure = structure or Structure()
            try:
                structure.add(body)
            except InvalidRequestError as error:
                raise _BodyRefused(error) from error
        return message

    return limited_receive


class _BodyRefused(HTTPException):
    """FastAPI turns any other exception raised while it reads a body into its own 400."""

    def __init__(self, error: StokerError) -> None:
        super().__init__(error.status)
        self.error = error


def _too_large(limit: int) -> _BodyRefused:
    message = f"The request body is larger than {limit} bytes, the limit of this server."
    return _BodyRefused(PayloadTooLargeError(message))


def error_response(error: StokerError) -> Response:
    return Response(
        orjson.dumps(error.body()),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StokerError, _on_stoker_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)


async def _on_stoker_error(_request: Request, error: Exception) -> Response:
    return error_response(error if isinstance(error, StokerError) else InternalError())


async def on_http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, _BodyRefused):
        return error_response(error.error)
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == HTTPStatus.NOT_FOUND:
        return error_response(_no_such_path(request.scope))
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _methods(request.app, request.scope["path"])
        message = f"{request.method} is not allowed on {request.scope['path']}."
        response = error_response(MethodNotAllowedError(message))
        response.headers["allow"] = ", ".join(sorted(allowed))
        return response
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return error_response(InvalidRequestError("The request could not be read."))
    return error_response(InternalError())


def _methods(app: FastAPI, path: str) -> set[str]:
    """All methods that a path takes. The router tells those of the first route alone that fits."""
    if not hasattr(app.state, _METHODS):
        setattr(app.state, _METHODS, [_served(route) for route in iter_route_contexts(app.routes)])
    table: list[tuple[re.Pattern[str], set[str]]] = getattr(app.state, _METHODS)
    found = {method for pattern, methods in table if pattern.match(path) for method in methods}
    return found | {"HEAD"} if "GET" in found else found


def _served(route: RouteContext) -> tuple[re.Pattern[str], set[str]]:
    path = str(route.path)
    if route.methods is None:
        # A folder of files.
        return re.compile(f"{re.escape(path)}(/|$)"), {"GET", "HEAD"}
    return compile_path(path)[0], set(route.methods)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return error_response(InternalError())
    # The first part says where the field stood: in the body, the query, a header.
    errors: list[Mapping[str, Any]] = [
        {**one, "loc": one["loc"][1:]} for one in error.errors()[:MOST_ERRORS]
    ]
    return error_response(from_validation(errors, _known_fields(request)))


def _no_such_path(scope: Scope) -> NotFoundError:
    return NotFoundError(f"No such path: {scope['path']}", code="not_found")


def _known_fields(request: Request) -> list[str]:
    """The fields of the body that the matched route takes."""
    body = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(body, "field_info", None), "annotation", None)
    return list(getattr(model, "model_fields", {}))
