"""Response that carries a file or ranges of it (RFC 9110, section 14)."""

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
from stoker.platform.web.error_handlers import error_response
from stoker.store.blobs import Blobs

_RANGES = re.compile("bytes=(.+)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile("([0-9]{1,100})-([0-9]{0,100})|-([0-9]{1,100})")
_FIRST_BYTES, _MOST_BYTES = 256 << 10, 4 << 20
"""Size in bytes of the first and of the largest block read from the store. Starlette reads smaller
pieces of a block. The first block is small, because a range may need no more.
"""
_FILE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def documented(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Returns the OpenAPI ``responses=`` of a route that returns files of these types."""
    return {
        **responses(NotFoundError, RangeNotSatisfiableError, CapacityError),
        307: {"description": "Signed URL of the object store (setting `blob_redirects`)."},
        200: {"description": "The file.", "content": dict.fromkeys(kinds, _FILE)},
        206: {
            "description": "The byte range that `Range` requested.",
            "content": dict.fromkeys((*kinds, "multipart/byteranges"), _FILE),
        },
    }


class Content(FileResponse):
    """Starlette's file response with strict range parsing, and range errors in Stoker's error
    format.
    """

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
    """Response for a blob that is not on this machine's disk."""

    def __init__(self, blobs: Blobs, key: str, size: int, made_at: datetime, **said: Any) -> None:
        self._blobs = blobs
        self._key = key
        self._size = size
        # The blob exists, and the file mode is not used anywhere.
        seconds = int(made_at.timestamp())
        file_stat = os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, size, seconds, seconds, seconds))
        super().__init__(said["filename"], stat_result=file_stat, **said)

    @contextlib.asynccontextmanager
    async def _open_file(self) -> AsyncGenerator[Any]:
        yield _BlobReader(self._blobs, self._key, self._size)


class _BlobReader:
    """The file methods that Starlette uses."""

    def __init__(self, blobs: Blobs, key: str, size: int) -> None:
        self._blobs = blobs
        self._key = key
        self._size = size
        self._next: int = 0
        """Offset of the next block."""
        self._length = _FIRST_BYTES
        self._block = b""
        self._at = 0
        """Position in the block."""

    async def seek(self, offset: int) -> None:
        self._next, self._length = offset, _FIRST_BYTES
        self._block, self._at = b"", 0

    async def read(self, length: int) -> bytes:
        """Returns up to `length` bytes of the current block."""
        if self._at == len(self._block):
            end = min(self._next + self._length, self._size)
            chunks = self._blobs.stream(self._key, self._next, end)
            self._block = b"".join([chunk async for chunk in chunks])
            self._at, self._next = 0, end
            self._length = min(2 * self._length, _MOST_BYTES)
        piece = self._block[self._at : self._at + length]
        self._at += len(piece)
        return piece


def _satisfiable(header: str, size: int) -> str:
    """Returns the header with only the ranges that the file has. Empty if the header is malformed.

    Starlette accepts anything that Python reads as a number, and skips unreadable ranges. It
    refuses all ranges if one begins after the end.
    """
    parsed = _RANGES.fullmatch(header.strip(" \t"))
    specs = [text.strip(" \t") for text in parsed[1].split(",")] if parsed else []
    satisfiable: list[str] = []
    behind = ""
    for spec in filter(None, specs):
        match = _RANGE.fullmatch(spec)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            return ""
        is_there = int(match[1]) < size if match[1] else int(match[3]) > 0
        if is_there:
            satisfiable.append(spec)
        else:
            behind = f"bytes={size}-"
    return f"bytes={','.join(satisfiable)}" if satisfiable else behind


def _refusal(message: Message) -> StokerError | None:
    if message["status"] == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        size = Headers(raw=message["headers"])["content-range"].rpartition("/")[2]
        error = RangeNotSatisfiableError(
            f"The range begins after the end of the file, which has {size} bytes.", param="range"
        )
        error.size = int(size)
        return error
    if message["status"] == HTTPStatus.BAD_REQUEST:
        return InvalidRequestError(
            "The header Range must name bytes, as in 'bytes=0-499', 'bytes=500-' or 'bytes=-500'.",
            param="range",
        )
    return None
