"""The gateway's end of a replica's socket, read and written by the event loop itself.

ZeroMQ was here before. Its threads, one at each end, cost the gateway a seventh of what it spends
on a small call (docs/architecture/decisions-serving.md).
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable, Sequence

from stoker.wire.framing import MOST_BYTES, Frame, FrameReader, FramingError, framed

log = logging.getLogger(__name__)

Received = Callable[[list[bytes]], None]

_STRANGERS = 8
"""Most that may be connected and have not shown who they are."""


class Channel:
    """Belongs to the event loop that was running when it was made; `close` ends it.

    There is one peer: the first whose first message is the secret. To others nothing is sent, and
    what they send goes nowhere.
    """

    def __init__(self, path: str, secret: bytes) -> None:
        """
        Args:
            path: of a Unix socket, which is made.
        """
        self._secret = secret
        self._peer: _Connection | None = None
        self._strangers: set[_Connection] = set()
        self._received: Received = lambda _frames: None
        self._loop = asyncio.get_running_loop()
        self._greetings: set[asyncio.Task[object]] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(path)
        self._listener.listen(_STRANGERS)
        self.closed = False

    def listen(self, received: Received) -> None:
        """Hand every message that comes to `received`, as its frames."""
        self._received = received
        self._loop.add_reader(self._listener, self._accept)

    def send(self, frames: Sequence[Frame]) -> None:
        """Never blocks: what is outstanding is bounded by the pool's queue limit, not here."""
        if self._peer is None:
            log.info("message to a replica that has not connected yet dropped")
        elif self._peer.is_closing:
            # Nobody is at the other end: the process has ended, which is reported in a moment.
            # What was sent to it is lost with whatever else it had.
            log.info("message to an exited replica dropped")
        else:
            self._peer.write(framed(frames))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._admit_no_more()
        if self._peer:
            self._peer.abort()

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            # Gone again, or there are no descriptors left: it is still there the next time.
            return
        if len(self._strangers) >= _STRANGERS:
            log.warning("too many connections to a replica's socket")
            connected.close()
            return
        one = _Connection(len(self._secret), self._heard, self._lost)
        self._strangers.add(one)
        greeting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: one, connected)
        )
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    def _heard(self, sender: "_Connection", frames: list[bytes]) -> None:
        if sender is not self._peer:
            self._greet(sender, frames)
            return
        try:
            self._received(frames)
        except Exception:
            log.exception("replica's message could not be handled")

    def _greet(self, sender: "_Connection", frames: Sequence[bytes]) -> None:
        """Of somebody who is not the peer: whether it is to be from now on."""
        is_open = self._peer is None and not self.closed
        if is_open and hmac.compare_digest(b"".join(frames), self._secret):
            self._peer = sender
            self._strangers.discard(sender)
            sender.takes(MOST_BYTES)
            self._admit_no_more()
        else:
            log.warning("unauthenticated peer on a replica's socket")
            sender.abort()

    def _admit_no_more(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        for one in list(self._strangers):
            one.abort()

    def _lost(self, one: "_Connection") -> None:
        self._strangers.discard(one)


class _Connection(asyncio.Protocol):
    """Whoever has connected."""

    def __init__(
        self,
        most_bytes: int,
        heard: Callable[["_Connection", list[bytes]], None],
        lost: Callable[["_Connection"], None],
    ) -> None:
        self._reader = FrameReader(most_bytes)
        self._heard = heard
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False

    def takes(self, most_bytes: int) -> None:
        """Longer messages, from now on."""
        self._reader.most_bytes = most_bytes

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def write(self, pieces: Sequence[Frame]) -> None:
        if self._transport:
            for piece in pieces:
                self._transport.write(piece)

    def abort(self) -> None:
        self._is_aborted = True
        if self._transport:
            self._transport.abort()

    # --- of asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self._is_aborted:
            self.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for frames in self._reader.feed(data):
                if self._is_aborted:
                    return
                self._heard(self, frames)
        except FramingError as error:
            log.warning("data from a replica's socket is not a message: %s", error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
