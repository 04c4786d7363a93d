"""A connection between a gateway and a node host: messages of several frames over TLS."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from stoker.wire.framing import Frame, FrameReader, FramingError, framed

log = logging.getLogger(__name__)

_JOINED_BELOW = 1 << 16
"""Bytes. To copy so few costs less than what is saved."""

Received = Callable[[list[bytes]], None]


class Link(asyncio.Protocol):
    """One end. What is sent within one step of the event loop goes out together."""

    def __init__(self, received: Received, lost: Callable[[], None], *, most_bytes: int) -> None:
        """
        Args:
            received: gets the frames of each message. What it raises ends the connection.
            most_bytes: of a message.
        """
        self._reader = FrameReader(most_bytes)
        self._received = received
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._waiting: list[Frame] = []
        self._loop = asyncio.get_running_loop()
        self.peer = ""
        """Its address, for the log."""

    def takes(self, most_bytes: int) -> None:
        """Longer messages, from now on."""
        self._reader.most_bytes = most_bytes

    @property
    def is_established(self) -> bool:
        """Whether the TLS handshake succeeded. The connection may be closed again."""
        return self._transport is not None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frames: Sequence[Frame]) -> None:
        """Never blocks; nothing, where the connection is gone: its loss is told."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += framed(frames)

    def close(self) -> None:
        """Once what was sent has gone out."""
        self._flush()
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self._transport and not self._transport.is_closing():
            # Each piece would be a record of TLS of its own.
            if sum(len(one) for one in waiting) < _JOINED_BELOW:
                waiting = [b"".join(waiting)]
            self._transport.writelines(waiting)

    # --- of asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.peer = str(transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        try:
            for frames in self._reader.feed(data):
                if not self.is_open:
                    return
                self._received(frames)
        except FramingError as error:
            log.warning("received data is not a message: %s", error, extra={"peer": self.peer})
            self.abort()
        except Exception:
            log.exception("message could not be handled", extra={"peer": self.peer})
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.clear()
        self._lost()
