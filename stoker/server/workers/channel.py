"""One end of the socket between a worker process and the server."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from stoker.wire.framing import Frame, FrameReader, FramingError, framed

log = logging.getLogger(__name__)


class WorkerChannel(asyncio.Protocol):
    """Sends and receives messages. All messages of one step of the event loop are sent together."""

    def __init__(self, received: Callable[[list[bytes]], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent: list[Frame] = []

    def send(self, frames: Sequence[Frame]) -> None:
        """Sends a message without blocking. Drops it if the other end is gone."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += framed(frames)

    def close(self) -> None:
        if self._transport:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport and not self._transport.is_closing():
            self._transport.writelines(unsent)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            for frames in self._reader.feed(data):
                self._received(frames)
        except FramingError:
            log.exception("data of an HTTP worker is not a message")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
