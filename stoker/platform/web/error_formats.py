"""Formats of errors: Stoker's own, and Anthropic's for its clients.

Anthropic's format: https://platform.claude.com/docs/en/api/errors.
"""

import re
from collections.abc import Container, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import Scope

from stoker.base.errors import StokerError
from stoker.base.logs import request_id
from stoker.wire import sse

VERSION_HEADER = "anthropic-version"
MESSAGES_PATH = "/v1/messages"
MODELS_PATH = "/v1/models"
"""Both APIs have it. The header decides."""
OVERLOADED = 529
"""Status of Anthropic's API for a server without capacity. No standard defines it."""
_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicError(BaseModel):
    type: str = Field(description="The kind of error.", examples=["invalid_request_error"])
    message: str = Field(description="Describes the problem and how to fix it.")
    code: str = Field(description="The code of the same error in other endpoints.")
    param: str | None = Field(default=None, description="Path of the invalid field.")
    progress: float | None = Field(default=None, ge=0, le=1)


class AnthropicErrorBody(BaseModel):
    type: Literal["error"]
    error: AnthropicError
    request_id: str


_RATE = re.compile(r"x-ratelimit-(limit|remaining|reset)-(requests|tokens)")
_SPAN = re.compile(r"(?:(?P<minutes>\d+)m)?(?:(?P<seconds>[\d.]+)s)?|(?P<ms>\d+)ms")


def is_anthropic(path: str, headers: Container[str]) -> bool:
    """Returns True if the client of a request speaks Anthropic's API."""
    if path.startswith(MESSAGES_PATH):
        return True
    return path.startswith(MODELS_PATH) and VERSION_HEADER in headers


def speaks_anthropic(scope: Scope) -> bool:
    """Returns True if the client of a request speaks Anthropic's API."""
    path: str = scope["path"]
    return is_anthropic(path, Headers(scope=scope) if path.startswith(MODELS_PATH) else ())


def status_of(error: StokerError, *, anthropic: bool) -> int:
    is_overloaded = anthropic and error.status == HTTPStatus.SERVICE_UNAVAILABLE
    return OVERLOADED if is_overloaded else error.status


def body_of(error: StokerError, *, anthropic: bool) -> dict[str, Any]:
    """Returns the JSON body of an error."""
    if not anthropic:
        return error.body()
    default = "api_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else _TYPES[400]
    fields = {name: value for name, value in error.body()["error"].items() if value is not None}
    return {
        "type": "error",
        "error": fields | {"type": _TYPES.get(error.status, default)},
        "request_id": request_id.get(),
    }


def event_of(error: StokerError, *, anthropic: bool) -> bytes:
    """Returns the last event of a stream that fails."""
    return sse.event(body_of(error, anthropic=anthropic), "error" if anthropic else None)


def encoded(error: StokerError, *, anthropic: bool) -> bytes:
    return orjson.dumps(body_of(error, anthropic=anthropic))


def further_headers(added: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of a response to a client of Anthropic's API.

    Args:
        added: headers of the key's limits, in the format of OpenAI's API.
    """
    headers = {"request-id": request_id.get() or ""}
    for name, value in added.items():
        if match := _RATE.fullmatch(name):
            kind, unit = match.groups()
            headers[f"anthropic-ratelimit-{unit}-{kind}"] = (
                _moment(value) if kind == "reset" else value
            )
    return {**added, **headers}


def _moment(span: str) -> str:
    """Returns the time at the end of a span such as `1m30s`, in the format of RFC 3339."""
    match = _SPAN.fullmatch(span)
    parts = {name: float(value or 0) for name, value in match.groupdict().items()} if match else {}
    delay = timedelta(
        minutes=parts.get("minutes", 0),
        seconds=parts.get("seconds", 0),
        milliseconds=parts.get("ms", 0),
    )
    return (datetime.now(UTC) + delay).strftime("%Y-%m-%dT%H:%M:%SZ")
