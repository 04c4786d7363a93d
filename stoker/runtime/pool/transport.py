"""Gateway side of a replica's socket, read and written directly by the event loop.

It replaced ZeroMQ, which runs a thread at each end. These threads cost the gateway a seventh of its
time for a small call (docs/architecture/decisions-serving.md).
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
"""Maximum number of connections that have not authenticated."""


class Channel:
    """Socket of one replica. Belongs to the event loop that was running when it was created.
    `close` ends it.

    The channel has one peer: the first connection with the secret as its first message. Other
    connections receive nothing, and their messages are dropped.
    """

    def __init__(self, path: str, secret: bytes) -> None:
        """
        Args:
            path: path of the Unix socket to create.
        """
        self._secret = secret
        self._peer: _ReplicaConnection | None = None
        self._strangers: set[_ReplicaConnection] = set()
        self._received: Received = lambda _frames: None
        self._loop = asyncio.get_running_loop()
        self._greetings: set[asyncio.Task[object]] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(path)
        self._listener.listen(_STRANGERS)
        self.closed = False

    def listen(self, received: Received) -> None:
        """Passes the frames of every message to `received`."""
        self._received = received
        self._loop.add_reader(self._listener, self._accept)

    def send(self, frames: Sequence[Frame]) -> None:
        """Sends a message without blocking. The pool's queue limits the outstanding messages, not
        this method.
        """
        if self._peer is None:
            log.info("message to a replica that has not connected yet dropped")
        elif self._peer.is_closing:
            # The process has ended, which will be reported soon. This message is lost with its
            # other work.
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
            # The peer has disconnected, or no descriptors are left. Then the connection is still
            # pending the next time.
            return
        if len(self._strangers) >= _STRANGERS:
            log.warning("too many connections to a replica's socket")
            connected.close()
            return
        connection = _ReplicaConnection(self._loop, len(self._secret), self._heard, self._lost)
        self._strangers.add(connection)
        greeting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: connection, connected)
        )
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    def _heard(self, sender: "_ReplicaConnection", frames: list[bytes]) -> None:
        if sender is not self._peer:
            self._greet(sender, frames)
            return
        try:
            self._received(frames)
        except Exception:
            log.exception("replica's message could not be handled")

    def _greet(self, sender: "_ReplicaConnection", frames: Sequence[bytes]) -> None:
        """Authenticates a connection. Makes it the peer, or aborts it."""
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
        for stranger in list(self._strangers):
            stranger.abort()

    def _lost(self, one: "_ReplicaConnection") -> None:
        self._strangers.discard(one)


class _ReplicaConnection(asyncio.Protocol):
    """An accepted connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        most_bytes: int,
        heard: Callable[["_ReplicaConnection", list[bytes]], None],
        lost: Callable[["_ReplicaConnection"], None],
    ) -> None:
        self._loop = loop
        self._reader = FrameReader(most_bytes)
        self._heard = heard
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False
        self._later: list[Frame] | None = None
        """Messages of this turn of the loop, after its first one. None before the first one."""

    def takes(self, most_bytes: int) -> None:
        """Sets the maximum size of further messages."""
        self._reader.most_bytes = most_bytes

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def write(self, pieces: Sequence[Frame]) -> None:
        """Sends a message. The messages of one turn of the loop, after the first one, are sent
        together, because each would wake the replica.
        """
        if self._later is not None:
            self._later += pieces
        elif self._transport:
            self._later = []
            self._loop.call_soon(self._flush)
            for piece in pieces:
                self._transport.write(piece)

    def _flush(self) -> None:
        pieces, self._later = self._later, None
        if pieces and self._transport and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def abort(self) -> None:
        self._is_aborted = True
        if self._transport:
            self._transport.abort()

    # --- asyncio.Protocol ---

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
