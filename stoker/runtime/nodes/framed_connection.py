"""Connection between a gateway and a node host: messages of several frames over TLS."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from stoker.wire.framing import Frame, FrameReader, FramingError, framed

log = logging.getLogger(__name__)

_JOINED_BELOW = 1 << 16
"""Maximum bytes of pieces that are joined before sending. Copying so few bytes costs less than it
saves.
"""

Received = Callable[[list[bytes]], None]


class FramedConnection(asyncio.Protocol):
    """End of a connection. Messages of one step of the event loop are sent together."""

    def __init__(self, received: Received, lost: Callable[[], None], *, most_bytes: int) -> None:
        """
        Args:
            received: gets the frames of each message. If it raises, the connection ends.
            most_bytes: maximum size of a message.
        """
        self._reader = FrameReader(most_bytes)
        self._received = received
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._waiting: list[Frame] = []
        self._loop = asyncio.get_running_loop()
        self.peer = ""
        """Address of the peer, for the log."""

    def takes(self, most_bytes: int) -> None:
        """Sets the maximum size of further messages."""
        self._reader.most_bytes = most_bytes

    @property
    def is_established(self) -> bool:
        """True if the TLS handshake succeeded. The connection may be closed again."""
        return self._transport is not None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frames: Sequence[Frame]) -> None:
        """Sends a message without blocking. Does nothing if the connection is closed, because its
        loss is reported separately.
        """
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += framed(frames)

    def close(self) -> None:
        """Closes the connection after all messages were sent."""
        self._flush()
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting and self._transport and not self._transport.is_closing():
            # Each piece would be a separate TLS record.
            if sum(len(piece) for piece in waiting) < _JOINED_BELOW:
                waiting = [b"".join(waiting)]
            self._transport.writelines(waiting)

    # --- asyncio.Protocol ---

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
