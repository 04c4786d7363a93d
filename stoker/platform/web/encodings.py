"""Decompresses request bodies (`Content-Encoding`) while they are read.

Limits apply to the decompressed bytes. Only a little is decompressed at a time, so that a small
body that expands without end is refused early.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from stoker.base.errors import InvalidRequestError, UnsupportedMediaTypeError

PIECE_BYTES = 64 * 1024
_PIECES_PER_TURN = 16
_ZSTD_STEP_BYTES = 256
"""Input bytes per step. A zstd block of four bytes may expand to 128 KiB."""
_ZSTD_WINDOW_BYTES = 8 << 20
_BY_ITSELF = ("", "identity")


class ContentDecoder(Protocol):
    is_whole: bool
    """True if the input so far is a complete body."""

    def feed(self, data: bytes) -> None: ...

    def take(self) -> bytes:
        """Returns the next piece, or empty bytes if none is available. Raises
        `InvalidRequestError`.
        """
        ...


class _Zlib:
    def __init__(self, window: int) -> None:
        self._window = window
        self._begin(b"")
        self.is_whole = False

    def _begin(self, data: bytes) -> None:
        self._object = zlib.decompressobj(self._window)
        self._data = data

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes:
        while True:
            try:
                piece = self._object.decompress(self._data, PIECE_BYTES)
            except zlib.error as error:
                raise _damaged() from error
            self._data = self._object.unconsumed_tail
            self.is_whole = self._object.eof
            if self._object.eof and self._object.unused_data:
                # Several consecutive streams form one body (RFC 1952, 2.2).
                self._begin(self._object.unused_data)
                self.is_whole = False
            elif piece or not self._data:
                return piece
            if piece:
                return piece


class _Zstd:
    def __init__(self) -> None:
        import zstandard

        self._error: type[Exception] = zstandard.ZstdError
        library = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._object: Any = library.decompressobj()
        self._data = b""
        self.is_whole = False

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes:
        piece, at = b"", 0
        try:
            while not piece and at < len(self._data):
                piece = self._object.decompress(self._data[at : at + _ZSTD_STEP_BYTES])
                at += _ZSTD_STEP_BYTES
        except self._error as error:
            raise _damaged() from error
        self._data = self._data[at:]
        self.is_whole = bool(self._object.eof)
        return piece


_DECODERS: dict[str, Callable[[], ContentDecoder]] = {
    "gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "x-gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "deflate": lambda: _Zlib(zlib.MAX_WBITS),
    "zstd": _Zstd,
}
ACCEPTED = tuple(name for name in _DECODERS if not name.startswith("x-"))


def decoded(scope: Scope, receive: Receive) -> Receive:
    """Returns a receive function that yields the decompressed body.

    The function raises `InvalidRequestError` for a damaged body and `UnsupportedMediaTypeError` for
    an unknown encoding.
    """
    encoding = ", ".join(Headers(scope=scope).getlist("content-encoding")).strip().lower()
    if encoding in _BY_ITSELF:
        return receive
    make = _DECODERS.get(encoding)
    decoder = make() if make else None
    is_over = is_done = False
    pieces = 0

    async def decoded_receive() -> Message:
        nonlocal is_over, is_done, pieces
        if decoder is None:
            raise UnsupportedMediaTypeError(
                f"The Content-Encoding {encoding[:64]!a} is not supported. Use "
                f"{', '.join(ACCEPTED)}, or send the body without encoding.",
                param="Content-Encoding",
            )
        while not is_done:
            if piece := decoder.take():
                pieces += 1
                if pieces % _PIECES_PER_TURN == 0:
                    # A body of few bytes may expand to many pieces. Others get their turn between.
                    await asyncio.sleep(0)
                return {"type": "http.request", "body": piece, "more_body": True}
            if is_over:
                if not decoder.is_whole:
                    raise _damaged()
                is_done = True
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await receive()
            if message["type"] != "http.request":
                return message
            decoder.feed(message.get("body", b""))
            is_over = not message.get("more_body", False)
        return await receive()

    return decoded_receive


def _damaged() -> InvalidRequestError:
    return InvalidRequestError(
        "The body does not match its Content-Encoding, or is cut off.",
        param="Content-Encoding",
    )
