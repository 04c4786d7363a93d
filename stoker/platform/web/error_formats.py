"""Formats of errors: Stoker's own, and those of Anthropic and Text Embeddings Inference (TEI) for
their clients.

Anthropic's format: https://platform.claude.com/docs/en/api/errors. TEI's has the message as
`error`. Two paths of TEI keep Stoker's format, because they also serve clients that read
`error.message`: `/rerank` those of Jina and Cohere, and `/tokenize` those of vLLM. The path
decides and not the body, which an invalid key or JSON leaves unread.
"""

import re
from collections.abc import Container, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
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
TEI_PATHS = frozenset(
    {"/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity", "/decode", "/info"}
)
"""Paths that only clients of TEI call."""
_TEI_TYPES: Mapping[int, str] = {429: "Overloaded", 503: "Unhealthy"}
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


class TeiErrorBody(BaseModel):
    error: str = Field(description="Describes the problem and how to fix it.")
    error_type: Literal["Validation", "Backend", "Overloaded", "Unhealthy"]
    code: str = Field(description="The code of the same error in other endpoints.")
    param: str | None = Field(default=None, description="Path of the invalid field.")
    progress: float | None = Field(default=None, ge=0, le=1)


_RATE = re.compile(r"x-ratelimit-(limit|remaining|reset)-(requests|tokens)")
_SPAN = re.compile(r"(?:(?P<minutes>\d+)m)?(?:(?P<seconds>[\d.]+)s)?|(?P<ms>\d+)ms")


class ErrorFormat(Enum):
    OWN = auto()
    ANTHROPIC = auto()
    TEI = auto()


def format_of(path: str, headers: Container[str]) -> ErrorFormat:
    """Returns the format of the errors of a request."""
    if path in TEI_PATHS:
        return ErrorFormat.TEI
    is_anthropic = path.startswith(MESSAGES_PATH) or (
        path.startswith(MODELS_PATH) and VERSION_HEADER in headers
    )
    return ErrorFormat.ANTHROPIC if is_anthropic else ErrorFormat.OWN


def format_for(scope: Scope) -> ErrorFormat:
    """Returns the format of the errors of a request."""
    path: str = scope["path"]
    return format_of(path, Headers(scope=scope) if path.startswith(MODELS_PATH) else ())


def status_of(error: StokerError, form: ErrorFormat) -> int:
    is_unavailable = error.status == HTTPStatus.SERVICE_UNAVAILABLE
    return OVERLOADED if is_unavailable and form is ErrorFormat.ANTHROPIC else error.status


def body_of(error: StokerError, form: ErrorFormat) -> dict[str, Any]:
    """Returns the JSON body of an error."""
    body = error.body()
    if form is ErrorFormat.OWN:
        return body
    fields = {name: value for name, value in body["error"].items() if value is not None}
    is_servers = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if form is ErrorFormat.TEI:
        default = "Backend" if is_servers else "Validation"
        del fields["type"]
        return {
            "error": fields.pop("message"),
            "error_type": _TEI_TYPES.get(error.status, default),
            **fields,
        }
    default = "api_error" if is_servers else _TYPES[400]
    return {
        "type": "error",
        "error": fields | {"type": _TYPES.get(error.status, default)},
        "request_id": request_id.get(),
    }


def event_of(error: StokerError, form: ErrorFormat) -> bytes:
    """Returns the last event of a stream that fails."""
    return sse.event(body_of(error, form), "error" if form is ErrorFormat.ANTHROPIC else None)


def encoded(error: StokerError, form: ErrorFormat) -> bytes:
    return orjson.dumps(body_of(error, form))


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
