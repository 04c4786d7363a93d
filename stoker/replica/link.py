"""The replica's end of its socket to the gateway."""

import errno
import logging
import os
import select
import socket
import threading
from collections import deque
from itertools import islice

import msgspec

from stoker.wire.framing import FrameReader, framed
from stoker.wire.protocol import FromReplica, RequestFailure, ToReplica, unpack

log = logging.getLogger(__name__)

CONNECT_S = 30.0
LINGER_S = 2.0
"""Timeout in seconds for sending unsent messages when the link closes."""
_READ_BYTES = 1 << 18
_MOST_PIECES = 64
"""Maximum number of pieces per call of `sendmsg`."""

_encode = msgspec.msgpack.Encoder().encode


class Link:
    """Connection to the gateway. Any thread sends on the socket itself. One thread, the owner,
    receives, and sends what the socket did not accept at once.
    """

    def __init__(self, path: str, secret: bytes) -> None:
        """Raises `OSError` if no gateway listens.

        Args:
            secret: identifies this replica to the gateway before requests and answers are
                exchanged.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_S)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._is_heard = True
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        """Encoded pieces to send. The gateway bounds the number of outstanding requests."""
        self._sending = threading.Lock()
        """Held while pieces are added or sent, so that messages stay whole and in order."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._events = select.POLLIN
        self._poller.register(self._socket, self._events)
        self._poller.register(self._wake, select.POLLIN)
        self._unsent.extend(map(memoryview, framed([secret])))
        self._push()

    def send(self, message: FromReplica, content: bytes | None = None) -> None:
        """Sends a message. Callable from any thread."""
        frames = [_encode(message)] if content is None else [_encode(message), content]
        with self._sending:
            is_blocked = bool(self._unsent)
            self._unsent.extend(map(memoryview, framed(frames)))
            if not is_blocked:
                self._push()
                is_blocked = bool(self._unsent)
        # The owner sends the rest. After a failure, it checks whether the model still works.
        if is_blocked or isinstance(message, RequestFailure):
            self.wake()

    def wake(self) -> None:
        """Makes `receive` return. Callable from any thread."""
        os.eventfd_write(self._wake, 1)

    def receive(self, timeout_s: float) -> list[ToReplica]:
        """Returns received messages, and sends the rest of earlier ones. Waits at most `timeout_s`
        seconds.
        """
        self._watch()
        events = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._wake in events:
            os.eventfd_read(self._wake)
        if self._unsent:
            with self._sending:
                self._push()
        if events.get(self._socket.fileno(), 0) & ~select.POLLOUT:
            return self._read()
        return []

    def _watch(self) -> None:
        """Selects the events to wait for: POLLOUT only if messages are unsent."""
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        if events != self._events and self._is_heard:
            self._poller.modify(self._socket, events)
            self._events = events

    def close(self) -> None:
        with self._sending:
            self._socket.settimeout(LINGER_S)
            try:
                for piece in self._unsent:
                    self._socket.sendall(piece)
            except OSError as error:
                log.info("last answers could not be sent: %s", error)
            self._socket.close()

    def _read(self) -> list[ToReplica]:
        messages: list[ToReplica] = []
        while True:
            try:
                piece = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return messages
            except ConnectionError:
                piece = b""
            if not piece:
                # The gateway ended or closed this connection. This process is ended, too.
                self._is_heard = False
                self._poller.unregister(self._socket)
                return messages
            messages += map(unpack, self._reader.feed(piece))
            if len(piece) < _READ_BYTES:
                return messages

    def _push(self) -> None:
        """Sends as much as the socket accepts."""
        try:
            while self._unsent:
                self._sent(self._socket.sendmsg(islice(self._unsent, _MOST_PIECES)))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                # The kernel has no memory for the message at this moment. The next try sends it.
                return
            # The gateway ended or the link is closed: this process ends soon, too.
            self._unsent.clear()

    def _sent(self, count: int) -> None:
        """Drops the first `count` bytes, which are sent."""
        while count:
            first = self._unsent.popleft()
            if count < len(first):
                self._unsent.appendleft(first[count:])
                return
            count -= len(first)
