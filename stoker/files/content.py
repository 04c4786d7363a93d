"""The answer that carries a file, or ranges of it (RFC 9110, section 14)."""

from http import HTTPStatus
from typing import Any

from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from stoker.errors import (
    InvalidRequestError,
    NotFoundError,
    RangeNotSatisfiableError,
    StokerError,
    responses,
)
from stoker.web.http import error_response

_FILE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def documented(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI ``responses=`` of a route that answers with files of these types."""
    return {
        **responses(NotFoundError, RangeNotSatisfiableError),
        200: {"description": "The file.", "content": dict.fromkeys(kinds, _FILE)},
        206: {
            "description": "What `Range` asked for.",
            "content": dict.fromkeys((*kinds, "multipart/byteranges"), _FILE),
        },
    }


class Content(FileResponse):
    """Starlette's, with what it says of wrong ranges in our shape."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: StokerError | None = None

        async def send_unless_refused(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                refused = _refusal(message)
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, send_unless_refused)
        if refused:
            await error_response(refused)(scope, receive, send)


def _refusal(message: Message) -> StokerError | None:
    if message["status"] == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        size = Headers(raw=message["headers"])["content-range"].rpartition("/")[2]
        error = RangeNotSatisfiableError(
            f"The range begins behind the end of the file, which has {size} bytes.", param="range"
        )
        error.size = int(size)
        return error
    if message["status"] == HTTPStatus.BAD_REQUEST:
        return InvalidRequestError(
            "The header Range must name bytes, as in 'bytes=0-499', 'bytes=500-' or 'bytes=-500'.",
            param="range",
        )
    return None
