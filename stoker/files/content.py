"""The answer that carries a file, or ranges of it (RFC 9110, section 14)."""

import re
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

_RANGES = re.compile("bytes=(.+)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile("([0-9]{1,100})-([0-9]{0,100})|-([0-9]{1,100})")
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
    """Starlette's, with what it says of wrong ranges in our shape, and without its leniency."""

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

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        if http_range.count(",") < cls.max_ranges:
            http_range = _satisfiable(http_range, file_size)
        return super()._parse_range_header(http_range, file_size)


def _satisfiable(header: str, size: int) -> str:
    """The header with those ranges alone that the file has; empty where it is none.

    Starlette takes whatever Python reads as a number, leaves out what it cannot read, and refuses
    all ranges for one that begins behind the end.
    """
    given = _RANGES.fullmatch(header.strip(" \t"))
    specs = [one.strip(" \t") for one in given[1].split(",")] if given else []
    found: list[str] = []
    behind = ""
    for spec in filter(None, specs):
        match = _RANGE.fullmatch(spec)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            return ""
        is_there = int(match[1]) < size if match[1] else int(match[3]) > 0
        if is_there:
            found.append(spec)
        else:
            behind = f"bytes={size}-"
    return f"bytes={','.join(found)}" if found else behind


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
