"""Splits an input file into lines and parses them. No file and no long line is held in memory."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from stoker.base.errors import NotFoundError
from stoker.platform.web.context import Platform
from stoker.platform.web.outage import lost_store_reported
from stoker.store.blobs import BlobLostError
from stoker.store.tables.files import File

_BOM = b"\xef\xbb\xbf"


class InputLine(NamedTuple):
    number: int
    """Number in the file, from 1. Empty lines count."""
    content: bytes | None
    """None for a line that is too long."""


class InputLostError(Exception):
    """Raised if the input file was deleted or has expired."""


class LineSplitter:
    """Splits blocks of bytes into lines. Skips empty lines and drops the content of long ones."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._number = 0
        self._open = bytearray()
        self._is_long = False

    def add(self, block: bytes) -> list[InputLine]:
        """Returns the lines that end in this block."""
        first, *rest = block.split(b"\n")
        if not rest:
            self._keep(first)
            return []
        lines = [*self._close(first)]
        for content in rest[:-1]:
            lines += self._close(content)
        self._keep(rest[-1])
        return lines

    def end(self) -> list[InputLine]:
        """Returns the last line if no newline follows it."""
        return [*self._close(b"")] if self._open or self._is_long else []

    def _keep(self, content: bytes) -> None:
        self._open += content
        if len(self._open) > self._most_bytes:
            self._is_long = True
        if self._is_long:
            self._open.clear()

    def _close(self, content: bytes) -> Iterable[InputLine]:
        self._number += 1
        if self._is_long or len(self._open) + len(content) > self._most_bytes:
            self._open.clear()
            self._is_long = False
            yield InputLine(self._number, None)
            return
        whole = bytes(self._open) + content if self._open else content
        self._open.clear()
        if self._number == 1:
            whole = whole.removeprefix(_BOM)
        if not whole.isspace() and whole:
            yield InputLine(self._number, whole)


async def read_lines(
    platform: Platform, file: File, most_bytes: int
) -> AsyncGenerator[Sequence[InputLine]]:
    """Yields the lines of a file in blocks.

    Raises `InputLostError`, and `CapacityError` if the store does not answer.
    """
    splitter = LineSplitter(most_bytes)
    try:
        with lost_store_reported():
            async for block in platform.blobs.stream(file.blob_key, 0, file.size):
                if lines := splitter.add(block):
                    yield lines
    except (BlobLostError, NotFoundError):
        raise InputLostError from None
    if lines := splitter.end():
        yield lines


class BatchLine(msgspec.Struct):
    """A request of a batch."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class BodyHead(msgspec.Struct):
    """Fields of a request's body that a batch reads itself."""

    model: str | None = None
    stream: Any = None


class CustomId(msgspec.Struct):
    custom_id: str


LINE = msgspec.json.Decoder(BatchLine)
HEAD = msgspec.json.Decoder(BodyHead)
CUSTOM_ID = msgspec.json.Decoder(CustomId)
PARSE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
