"""All errors that a client can see, with status, type and code. docs/errors.md lists them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field, ValidationError

MOST_ERRORS = 100
"""Maximum number of a request's errors that are searched for the one to report."""
_MOST_NAME_CHARS = 100


class ErrorDetail(BaseModel):
    type: str = Field(description="The error's class.", examples=["InvalidRequestError"])
    code: str = Field(description="The error's code, stable.", examples=["invalid_request"])
    message: str = Field(description="Describes the problem and how to fix it.")
    param: str | None = Field(
        default=None, description="Path of the invalid field.", examples=["top_k"]
    )
    progress: float | None = Field(
        default=None, ge=0, le=1, description="With `model_loading`: how far loading has come."
    )


class ErrorBody(BaseModel):
    error: ErrorDetail


class StokerError(Exception):
    """Base of the errors that reach the client. Raised by the code that detects the error,
    converted to a response at the edge.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalError"
    code: str = "internal_error"
    default_message: ClassVar[str] = (
        "Internal server error. Search the server's log for the request id to find the cause."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        progress: float | None = None,
        is_lasting: bool = False,
    ) -> None:
        """
        Args:
            is_lasting: True if a retry cannot succeed, even if the status suggests otherwise.
        """
        self.message = message or self.default_message
        self.code = code or type(self).code
        self.param = param
        self.retry_after_s = retry_after_s
        self.progress = progress
        self.is_lasting = is_lasting
        super().__init__(self.message)

    @property
    def headers(self) -> dict[str, str]:
        if self.is_lasting:
            # Without this header, the openai SDK would retry twice.
            return {"x-should-retry": "false"}
        if self.retry_after_s is None:
            return {}
        # The openai SDK ignores values above 120 s.
        return {"retry-after": str(max(1, min(120, math.ceil(self.retry_after_s))))}

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
        }
        if self.progress is not None:
            error["progress"] = round(self.progress, 3)
        return {"error": error}


class InternalError(StokerError):
    pass


class InvalidRequestError(StokerError):
    status = 400
    type = "InvalidRequestError"
    code = "invalid_request"


class InvalidMediaError(StokerError):
    status = 400
    type = "InvalidMediaError"
    code = "invalid_media"


class EndpointNotSupportedError(StokerError):
    status = 400
    type = "EndpointNotSupportedError"
    code = "endpoint_not_supported"


class InvalidAPIKeyError(StokerError):
    status = 401
    type = "InvalidAPIKeyError"
    code = "invalid_api_key"
    # The three cases share one message, so that it does not reveal whether such a key existed.
    default_message = (
        "Invalid API key: it is unknown, has expired or was revoked. "
        "Send a valid one as 'Authorization: Bearer sk-…'."
    )

    @property
    def headers(self) -> dict[str, str]:
        if self.is_lasting:
            # Without this header, the openai SDK would retry twice.
            return {"x-should-retry": "false"}
        return {"www-authenticate": "Bearer"}


class RunLimitError(StokerError):
    """Failure of an agent's run. Never returned as the response to a request."""

    status = 400
    type = "RunLimitError"
    code = "step_limit_exceeded"


class InsufficientCreditsError(StokerError):
    status = 402
    type = "InsufficientCreditsError"
    code = "insufficient_credits"
    default_message = (
        "The account has no credit left. An operator can grant more. GET /v1/credits "
        "returns the balance, GET /v1/usage the usage."
    )


class ForbiddenError(StokerError):
    status = 403
    type = "ForbiddenError"
    code = "repository_gated"


class ModelNotFoundError(StokerError):
    status = 404
    type = "ModelNotFoundError"
    code = "model_not_found"


class NotFoundError(StokerError):
    status = 404
    type = "NotFoundError"
    code = "not_found"
    default_message = "Not found"


class MethodNotAllowedError(StokerError):
    status = 405
    type = "MethodNotAllowedError"
    code = "method_not_allowed"


class RequestTimeoutError(StokerError):
    status = 408
    type = "RequestTimeoutError"
    code = "request_timeout"


class ConflictError(StokerError):
    status = 409
    type = "ConflictError"
    code = "conflict"


class PayloadTooLargeError(StokerError):
    status = 413
    type = "PayloadTooLargeError"
    code = "payload_too_large"


class URITooLongError(StokerError):
    status = 414
    type = "URITooLongError"
    code = "uri_too_long"


class UnsupportedMediaTypeError(StokerError):
    status = 415
    type = "UnsupportedMediaTypeError"
    code = "unsupported_media_type"


class RangeNotSatisfiableError(StokerError):
    status = 416
    type = "RangeNotSatisfiableError"
    code = "range_not_satisfiable"

    size: int = 0
    """Size of the file in bytes."""

    @property
    def headers(self) -> dict[str, str]:
        return {"content-range": f"bytes */{self.size}"}


class RateLimitError(StokerError):
    status = 429
    type = "RateLimitError"
    code = "rate_limited"


class HeadersTooLargeError(StokerError):
    status = 431
    type = "HeadersTooLargeError"
    code = "headers_too_large"


class InferenceError(StokerError):
    status = 500
    type = "InferenceError"
    code = "inference_failed"


class HubError(StokerError):
    """Unusable response of a hub. A retry does not help."""

    status = 502
    type = "HubError"
    code = "hub_error"


class ModelLoadingError(StokerError):
    status = 503
    type = "ModelLoadingError"
    code = "model_loading"


class CapacityError(StokerError):
    status = 503
    type = "CapacityError"
    code = "worker_lost"


class InferenceTimeoutError(StokerError):
    status = 504
    type = "TimeoutError"
    code = "timeout"


ALWAYS: tuple[type[StokerError], ...] = (
    InvalidRequestError,
    InvalidAPIKeyError,
    # For signed-in browsers.
    ForbiddenError,
    RateLimitError,
)
CALLING: tuple[type[StokerError], ...] = (
    EndpointNotSupportedError,
    ForbiddenError,
    InsufficientCreditsError,
    ModelNotFoundError,
    # Code `deployment_stopped`.
    ConflictError,
    PayloadTooLargeError,
    InferenceError,
    ModelLoadingError,
    CapacityError,
    InferenceTimeoutError,
)


def responses(*errors: type[StokerError]) -> dict[int | str, dict[str, Any]]:
    """Returns the OpenAPI ``responses=`` of a route: the passed errors and those of every route."""
    return _grouped([*ALWAYS, *errors])


def _grouped(errors: Iterable[type[StokerError]]) -> dict[int | str, dict[str, Any]]:
    grouped: dict[int | str, dict[str, Any]] = {}
    for error in errors:
        entry = grouped.setdefault(error.status, {"model": ErrorBody, "description": ""})
        names: str = entry["description"]
        if error.type not in names.split(" or "):
            entry["description"] = f"{names} or {error.type}" if names else error.type
    return grouped


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that a misspelt one most likely means, or None."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def location(loc: Iterable[str | int]) -> str:
    """Converts a pydantic error location to a field path: ``("inputs", 3)`` → ``inputs[3]``."""
    path = ""
    for part in loc:
        name = _shown(part) if isinstance(part, str) else ""
        path += f"[{part}]" if isinstance(part, int) else f".{name}" if path else name
    return path


def _shown(name: str) -> str:
    """Shortens a name that a client has sent."""
    return name if len(name) <= _MOST_NAME_CHARS else f"{name[:_MOST_NAME_CHARS]}…"


def from_validation(
    given: ValidationError | Sequence[Mapping[str, Any]], known: Iterable[str]
) -> InvalidRequestError:
    """Converts a pydantic error to an `InvalidRequestError`. For an unknown field, suggests the
    nearest known one.
    """
    errors: Sequence[Mapping[str, Any]] = (
        # The client's input may be large, so the error does not repeat it.
        given.errors(include_url=False, include_context=False, include_input=False)
        if isinstance(given, ValidationError)
        else given
    )
    # A misspelt field also causes a missing-field error. The unknown-field error is more helpful.
    unknown = (error for error in errors if error["type"] == "extra_forbidden")
    first = next(unknown, errors[0])
    loc = first["loc"]
    # Pydantic adds the name of each union member that it tries to the location. Clients do not know
    # these names.
    names = [part for part in loc if isinstance(part, int) or not _is_union_member(part)]
    param = location(names) or None
    kind = first["type"]
    if kind == "extra_forbidden":
        close = nearest(_shown(str(names[-1])), known)
        hint = f" Did you mean '{close}'?" if close else ""
        return InvalidRequestError(f"Unknown field '{param}'.{hint}", param=param)
    if kind == "json_invalid":
        return InvalidRequestError(f"The body is not valid JSON: {_fault_of_json(first)}.")
    if kind == "missing":
        return InvalidRequestError(
            f"'{param}' is required." if param else "A JSON body is required.", param=param
        )
    message = str(first["msg"]).removeprefix("Value error, ")
    # Some messages continue a sentence that begins with the field's name.
    separator = " " if message.startswith("is ") else ": "
    sentence = f"'{param}'{separator}{message}" if param else message
    return InvalidRequestError(sentence if sentence.endswith("?") else f"{sentence}.", param=param)


def _fault_of_json(error: Mapping[str, Any]) -> str:
    """Returns a JSON parser's message with the position. Neither parser quotes the body."""
    if detail := error.get("ctx", {}).get("error"):
        # FastAPI's error contains the character's index.
        return f"{str(detail).removesuffix(' at')} at character {int(error['loc'][-1]) + 1}"
    detail = str(error["msg"]).removeprefix("Invalid JSON: ")
    problem, at, place = detail.partition(" at line ")
    return f"{_JSON_WORDS.get(problem, problem)}{at}{place}"


_HALF = "half of a surrogate pair or an incomplete escape"
_JSON_WORDS: Mapping[str, str] = {
    "unexpected end of hex escape": _HALF,
    "lone leading surrogate in hex escape": _HALF,
}
"""Maps the parser's wording to terms for the data that clients send."""


def _is_union_member(part: object) -> bool:
    return isinstance(part, str) and (part.startswith(("<", "constrained-")) or "[" in part)
