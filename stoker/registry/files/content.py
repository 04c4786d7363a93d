"""The answer that carries a file, or ranges of it (RFC 9110, section 14)."""

import contextlib
import os
import re
import stat
from collections.abc import AsyncGenerator
from datetime import datetime
from http import HTTPStatus
from typing import Any

from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from stoker.base.errors import (
    CapacityError,
    InvalidRequestError,
    NotFoundError,
    RangeNotSatisfiableError,
    StokerError,
    responses,
)
from stoker.platform.web.http import error_response
from stoker.store.blobs import Blobs

_RANGES = re.compile("bytes=(.+)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile("([0-9]{1,100})-([0-9]{0,100})|-([0-9]{1,100})")
_FIRST_BYTES, _MOST_BYTES = 256 << 10, 4 << 20
"""Of what is read at a time, of which what Starlette reads at a time is a part. Little at first, as
of a range there may be no more to come.
"""
_FILE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def documented(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI ``responses=`` of a route that answers with files of these types."""
    return {
        **responses(NotFoundError, RangeNotSatisfiableError, CapacityError),
        307: {"description": "Signed URL of the object store (setting `blob_redirects`)."},
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


class StoredContent(Content):
    """Of a blob that is not on this machine's disk."""

    def __init__(self, blobs: Blobs, key: str, size: int, made_at: datetime, **said: Any) -> None:
        self._blobs = blobs
        self._key = key
        self._size = size
        # What files' modes say is looked at nowhere: it was found to be there.
        seconds = int(made_at.timestamp())
        found = os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, size, seconds, seconds, seconds))
        super().__init__(said["filename"], stat_result=found, **said)

    @contextlib.asynccontextmanager
    async def _open_file(self) -> AsyncGenerator[Any]:
        yield _Reader(self._blobs, self._key, self._size)


class _Reader:
    """As much of a file as Starlette uses."""

    def __init__(self, blobs: Blobs, key: str, size: int) -> None:
        self._blobs = blobs
        self._key = key
        self._size = size
        self._next: int = 0
        """Where the next block begins."""
        self._length = _FIRST_BYTES
        self._block = b""
        self._at = 0
        """In the block."""

    async def seek(self, offset: int) -> None:
        self._next, self._length = offset, _FIRST_BYTES
        self._block, self._at = b"", 0

    async def read(self, length: int) -> bytes:
        """`length` bytes, which is a part of a block; fewer at the end alone."""
        if self._at == len(self._block):
            end = min(self._next + self._length, self._size)
            chunks = self._blobs.stream(self._key, self._next, end)
            self._block = b"".join([chunk async for chunk in chunks])
            self._at, self._next = 0, end
            self._length = min(2 * self._length, _MOST_BYTES)
        found = self._block[self._at : self._at + length]
        self._at += len(found)
        return found


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
