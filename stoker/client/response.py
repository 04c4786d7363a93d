"""Responses of the API: their values, or the errors that they stand for."""

import contextlib
import json
import re
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import proxies
from .errors import (
    ApiError,
    ApiProblem,
    BrokenConnectionError,
    StokerError,
    UnexpectedResponseError,
    UnreachableError,
    WrongUseError,
)
from .request import JsonObject

if TYPE_CHECKING:
    import httpx

Value = TypeVar("Value")

BASE_URL = "base_url or STOKER_BASE_URL"
"""How hints name the setting of the server's address."""
_MISSING = re.compile(r"missing required field `([^`]+)`")


@contextlib.contextmanager
def exchanging(base_url: str) -> Generator[None]:
    """Converts errors of httpx to errors of this client."""
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnreachableError(
            f"Cannot reach a server at {base_url}: {error}",
            base_url=base_url,
            hint=proxies.hint(base_url),
        ) from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise BrokenConnectionError(f"The connection to {base_url} broke: {reason}") from error
    except httpx.InvalidURL as error:
        raise not_an_address(base_url) from error


def not_an_address(base_url: str) -> WrongUseError:
    return WrongUseError(
        f"'{base_url}' is not the address of a server.",
        hint=f"Set {BASE_URL}, for example to http://127.0.0.1:8000.",
    )


def decoded(answer: "httpx.Response") -> Any:
    """Returns the JSON value of a response."""
    try:
        return answer.json()
    except ValueError as error:
        raise _not_json(answer) from error


def typed(answer: "httpx.Response", kind: type[Value]) -> Value:
    """Returns the value of a response. Raises `UnexpectedResponseError` if it has another type."""
    import msgspec

    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.ValidationError as error:
        raise unexpected(error) from error
    except msgspec.DecodeError as error:
        raise _not_json(answer) from error


def converted(value: object, kind: type[Value]) -> Value:
    """Converts a JSON value. Raises `UnexpectedResponseError` if it has another type."""
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise unexpected(error) from error


def unexpected(error: Exception) -> UnexpectedResponseError:
    missing = _MISSING.search(str(error))
    fault = (
        f"The server's response has no field '{missing[1]}'."
        if missing
        else f"The server's response does not fit this client: {error}."
    )
    return UnexpectedResponseError(
        fault, hint="Is the server older than this client? Compare the versions of both."
    )


def _not_json(answer: "httpx.Response") -> StokerError:
    return StokerError(
        f"{answer.request.url} did not return JSON.",
        hint=f"Check that {BASE_URL} is the address of a Stoker server.",
    )


def error_of(answer: "httpx.Response") -> ApiError:
    """Returns the error of a response whose body was read."""
    error = _error_object(answer)
    progress = error.get("progress")
    return ApiError(
        ApiProblem(
            status=answer.status_code,
            code=str(error.get("code") or "unknown"),
            message=str(
                error.get("message") or f"The server returned status {answer.status_code}."
            ),
            param=error.get("param"),
            request_id=answer.headers.get("x-request-id"),
            retry_after_s=_seconds(answer.headers.get("retry-after")),
            progress=float(progress) if isinstance(progress, int | float) else None,
            is_lasting=answer.headers.get("x-should-retry") == "false",
        )
    )


def _error_object(answer: "httpx.Response") -> JsonObject:
    """Returns the error object. Empty if the response is not from a Stoker server."""
    try:
        return json_object(json_object(answer.json()).get("error"))
    except ValueError:
        return {}


def json_object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _seconds(retry_after: str | None) -> float | None:
    """Parses Retry-After in seconds. The date form is ignored."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else None


class EventLines:
    """Parses the lines of a stream of server-sent events whose data are JSON objects."""

    def __init__(self) -> None:
        self._name = ""

    def read(self, line: str) -> Iterable[tuple[str, JsonObject]]:
        """Returns the event that a line completes, if any, with its name."""
        data = line.removeprefix("data: ")
        event = (
            [(self._name, json_object(json.loads(data)))] if data not in (line, "[DONE]") else []
        )
        self._name = line.removeprefix("event: ") if line.startswith("event: ") else ""
        return event
