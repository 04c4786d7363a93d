"""The gateway's end of a replica's socket: ZeroMQ read by the event loop itself.

pyzmq's asyncio sockets cost a task and several futures a message, about 0.3 ms on two busy cores;
here a message costs one call of the loop's reader.
"""

import asyncio
import errno
import hmac
import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq

log = logging.getLogger(__name__)

Received = Callable[[list[bytes]], None]


class Channel:
    """Belongs to the event loop that was running when it was made; `close` ends it.

    There is one peer: the first whose first message is the secret. To others nothing is sent, and
    what they send goes nowhere.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, secret: bytes
    ) -> None:
        self._socket: Any = context.socket(zmq.ROUTER)
        self._secret = secret
        self._peer: bytes | None = None
        # A message to a peer that is gone is an error, and not dropped in silence.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # What is outstanding is bounded by the pool's queue limit, not by ZeroMQ's buffers.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = self._socket.getsockopt(zmq.FD)

    def listen(self, received: Received) -> None:
        """Hand every message that comes to `received`, as its frames."""
        self._received = received
        self._loop.add_reader(self._descriptor, self._drain)
        self._drain()

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Sent before this returns; never blocks, because the socket has no high-water mark."""
        if self._peer is None:
            log.info("a message to a replica that has not shown itself yet is dropped")
            return
        try:
            self._socket.send_multipart((self._peer, *frames), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                raise
            # Nobody is at the other end: the process has ended, which is reported in a moment.
            # What was sent to it is lost with whatever else it had.
            log.info("a message to a replica that has ended is dropped")
            return
        # The descriptor signals a *change* only, and sending may have swallowed it (see
        # ZMQ_FD in its manual): what came meanwhile would wait for the next message.
        if self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._loop.call_soon(self._drain)

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=0)

    def _drain(self) -> None:
        while not self._socket.closed:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            sender = frames.pop(0)
            if sender != self._peer:
                self._greet(sender, frames)
                continue
            try:
                self._received(frames)
            except Exception:
                log.exception("a replica's message could not be handled")

    def _greet(self, sender: bytes, frames: Sequence[bytes]) -> None:
        """Of somebody who is not the peer: whether it is to be from now on."""
        if self._peer is None and hmac.compare_digest(b"".join(frames), self._secret):
            self._peer = sender
        else:
            log.warning("somebody else has spoken at a replica's socket")
