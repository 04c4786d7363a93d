"""Responses to errors: status, JSON body and headers."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Scope

from stoker.base.errors import (
    MOST_ERRORS,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    StokerError,
    from_validation,
)
from stoker.platform.web import error_formats
from stoker.platform.web.error_formats import ErrorFormat

_METHODS = "methods_of_paths"


class BodyRefusedError(HTTPException):
    """Carries a Stoker error through FastAPI, which turns any other exception while reading a body
    into its own 400.
    """

    def __init__(self, error: StokerError) -> None:
        super().__init__(error.status)
        self.error = error


def error_response(error: StokerError, scope: Scope | None = None) -> Response:
    """
    Args:
        scope: the request, which determines the error's format. None means Stoker's own.
    """
    form = ErrorFormat.OWN if scope is None else error_formats.format_for(scope)
    return Response(
        error_formats.encoded(error, form),
        status_code=error_formats.status_of(error, form),
        headers=error.headers,
        media_type="application/json",
    )


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StokerError, _on_stoker_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)


async def _on_stoker_error(request: Request, error: Exception) -> Response:
    known_error = error if isinstance(error, StokerError) else InternalError()
    return error_response(known_error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, BodyRefusedError):
        return error_response(error.error, request.scope)
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == HTTPStatus.NOT_FOUND:
        return error_response(no_such_path(request.scope), request.scope)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _methods(request.app, request.scope["path"])
        message = f"{request.method} is not allowed on {request.scope['path']}."
        response = error_response(MethodNotAllowedError(message), request.scope)
        response.headers["allow"] = ", ".join(sorted(allowed))
        return response
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        unreadable = InvalidRequestError("The request could not be read.")
        return error_response(unreadable, request.scope)
    return error_response(InternalError(), request.scope)


def _methods(app: FastAPI, path: str) -> set[str]:
    """Returns all methods that a path accepts. The router reports only those of the first matching
    route.
    """
    if not hasattr(app.state, _METHODS):
        setattr(app.state, _METHODS, [_served(route) for route in iter_route_contexts(app.routes)])
    table: list[tuple[re.Pattern[str], set[str]]] = getattr(app.state, _METHODS)
    methods_of_path = {
        method for pattern, methods in table if pattern.match(path) for method in methods
    }
    return methods_of_path | {"HEAD"} if "GET" in methods_of_path else methods_of_path


def _served(route: RouteContext) -> tuple[re.Pattern[str], set[str]]:
    path = str(route.path)
    if route.methods is None:
        # The route serves a folder of files.
        return re.compile(f"{re.escape(path)}(/|$)"), {"GET", "HEAD"}
    return compile_path(path)[0], set(route.methods)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        return error_response(InternalError(), request.scope)
    # The first part names the field's location: the body, the query or a header.
    errors: list[Mapping[str, Any]] = [
        {**item, "loc": item["loc"][1:]} for item in error.errors()[:MOST_ERRORS]
    ]
    return error_response(from_validation(errors, _known_fields(request)), request.scope)


def no_such_path(scope: Scope) -> NotFoundError:
    return NotFoundError(f"No such path: {scope['path']}", code="not_found")


def _known_fields(request: Request) -> list[str]:
    """Returns the body fields that the matched route accepts."""
    body = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(body, "field_info", None), "annotation", None)
    return list(getattr(model, "model_fields", {}))
