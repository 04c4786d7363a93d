"""Heads of responses, with the same bytes as those of the server."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from http import HTTPStatus

from starlette.responses import Response

from stoker.inference.session import VERSION

_CLOSE = b"connection: close\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"


class _Date:
    """Header `date`, formatted once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._line


_date = _Date()


@dataclass(frozen=True, kw_only=True)
class ResponseHead:
    """Head of the response to a call."""

    request_id: str
    status: int = 200
    media_type: str
    length: int | None
    """Bytes of the body. None means that it is streamed."""
    before: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers before those of the body."""
    version_id: str | None = None
    counted: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the key's limits."""
    closes: bool = False
    """True if the connection is closed after the response."""
    varies: bool = False
    """True if pages of other origins may call the server."""

    def content(self) -> bytes:
        return b"".join(self._lines())

    def _lines(self) -> Iterable[bytes]:
        yield _status_line(self.status)
        yield _date.line()
        yield from map(_line, self.before.items())
        if self.length is not None:
            yield b"content-length: %d\r\n" % self.length
        yield _content_type(self.media_type)
        if self.length is None:
            yield b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
        if self.version_id:
            yield _line((VERSION, self.version_id))
        if self.varies:
            yield b"vary: Origin\r\n"
        yield b"x-request-id: %b\r\nx-content-type-options: nosniff\r\n" % self.request_id.encode()
        yield from map(_line, self.counted.items())
        if self.closes:
            yield _CLOSE
        if self.length is None:
            yield _CHUNKED
        yield b"\r\n"


def chunk(part: bytes) -> bytes:
    """Returns a part of a streamed body."""
    return b"%x\r\n%b\r\n" % (len(part), part)


LAST_CHUNK = b"0\r\n\r\n"


def _line(header: tuple[str, str]) -> bytes:
    return f"{header[0]}: {header[1]}\r\n".encode("latin-1")


@cache
def _status_line(status: int) -> bytes:
    # Statuses of other APIs have no phrase.
    phrase = HTTPStatus(status).phrase if status in {*HTTPStatus} else ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


@cache
def _content_type(media_type: str) -> bytes:
    return _line(("content-type", Response(media_type=media_type).headers["content-type"]))
