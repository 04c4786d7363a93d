"""One client's connection in a worker process."""

import asyncio
import time
from typing import Protocol

from stoker.server.edge.connections import Ended
from stoker.server.edge.kernel import unsent
from stoker.server.edge.limits import IDLE_S, PROGRESS_BYTES
from stoker.server.workers.heads import END, MOST_HEAD_BYTES, CallHead

PATIENCE_S = 2.0
"""Seconds for which a worker waits for the rest of a request. The server then continues, with its
own time limits.
"""
_MOST_PIPELINED_BYTES = 64 << 10
_RETRY_S = 0.01


class CallHandler(Protocol):
    """The worker, for its connections."""

    answer_s: float

    def read_head(self, head: bytes) -> CallHead | None:
        """Returns the call of a head, or None if the server must read the request."""
        ...

    def answer(
        self, connection: "WorkerConnection", head: CallHead, body: bytes, started: float
    ) -> asyncio.Task[None]:
        """Starts to answer a call whose head arrived at a time of `time.perf_counter`."""
        ...

    def abandon(self, connection: "WorkerConnection", head: CallHead, started: float) -> None:
        """Logs a call whose client has disconnected before its body was complete."""
        ...

    def hand_over(self, connection: "WorkerConnection", data: bytes) -> None: ...

    def lost(self, connection: "WorkerConnection", reason: str) -> None: ...


class WorkerConnection(asyncio.Protocol):
    """Reads calls one by one, and hands the connection over for any other request."""

    def __init__(self, number: int, handler: CallHandler) -> None:
        self.number = number
        self.calls = 0
        """Answered calls."""
        self.closes = False
        """True if the connection ends after the current response."""
        self.task: asyncio.Task[None] | None = None
        """The request in progress."""
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._buffer = b""
        self._incomplete: tuple[CallHead, float] | None = None
        """Head of a request without its whole body, and the time of its arrival."""
        self._request: bytes = b""
        """The request in progress, for a hand-over."""
        self._since = self._loop.time()
        self._is_used = False
        """True if a request was answered."""
        self._is_leaving = False
        self._end_reason = ""
        self._unread_mark: tuple[float, int] | None = None
        self._writable: asyncio.Future[None] | None = None

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self._buffer and self.task is None:
            self._since = self._loop.time()
        self._buffer += data
        if self.task is None:
            self._advance()
        elif len(self._buffer) > _MOST_PIPELINED_BYTES:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        if self.task:
            self.task.cancel()
        if self._is_leaving:
            return
        if self._incomplete:
            self._handler.abandon(self, *self._incomplete)
        self._handler.lost(self, self._end_reason)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable and not writable.done():
            writable.set_result(None)

    # --- requests ---

    def _advance(self) -> None:
        """Starts the request in the buffer if it is complete."""
        end = self._buffer.find(END)
        if end < 0:
            if (
                len(self._buffer) > MOST_HEAD_BYTES
                or self._buffer[:4] != b"POST"[: len(self._buffer)]
            ):
                self._leave()
            return
        end += len(END)
        head = self._handler.read_head(self._buffer[:end]) if end <= MOST_HEAD_BYTES else None
        if head is None:
            self._leave()
            return
        _, started = self._incomplete = self._incomplete or (head, time.perf_counter())
        whole = end + head.length
        if len(self._buffer) < whole:
            return
        self._incomplete = None
        body = self._buffer[end:whole]
        self._request, self._buffer = self._buffer[:whole], self._buffer[whole:]
        self.task = self._handler.answer(self, head, body, started)

    def finish(self) -> None:
        """Ends the current request after its response was written."""
        self.calls += 1
        self.task, self._request, self._is_used = None, b"", True
        self._since = self._loop.time()
        if self.closes:
            self._transport.close()
        elif self._buffer:
            # Pipelined requests are rare. The server answers them in order.
            self._leave()

    def give_back(self) -> None:
        """Hands the current request over. Nothing of its response may be written."""
        self._buffer = self._request + self._buffer
        self.task, self._request = None, b""
        self._leave()

    def _leave(self) -> None:
        self._transport.pause_reading()
        if self._transport.is_closing() or self._is_leaving:
            return
        if self._transport.get_write_buffer_size():
            # The last response must be sent first.
            self._loop.call_later(_RETRY_S, self._leave)
            return
        self._is_leaving = True
        self._handler.hand_over(self, self._buffer)
        self._transport.abort()

    # --- response ---

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        """Waits while the client reads too slowly."""
        if self._writable is not None:
            await self._writable

    # --- limits ---

    def end_when_idle(self) -> None:
        """Ends the connection after its current request, which the server answers if it is not
        complete yet.
        """
        self.closes = True
        if self.task is None and self._buffer:
            self._leave()
        elif self.task is None:
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        self._end_reason = reason
        self._transport.abort()

    def check(self, now: float) -> None:
        """Ends or hands over the connection if it has exceeded a time limit."""
        if self._is_unread(now):
            self.abort(Ended.ANSWER_TIMEOUT)
        elif self.task is not None or self._transport.is_closing():
            return
        elif self._is_used and not self._buffer:
            if now - self._since > IDLE_S:
                self._end_reason = Ended.IDLE
                self._transport.close()
        elif now - self._since > PATIENCE_S and self._transport.is_reading():
            self._leave()

    def _is_unread(self, now: float) -> bool:
        """Returns True if the client has stopped reading the response for longer than the limit."""
        unread_bytes = self._transport.get_write_buffer_size()
        writes_more = self.task is not None and self._writable is None
        if not unread_bytes or (writes_more and not self._transport.is_closing()):
            self._unread_mark = None
            return False
        unread_bytes += unsent(self._transport)
        if self._unread_mark is not None:
            since, before = self._unread_mark
            if before - PROGRESS_BYTES < unread_bytes <= before:
                return now - since > self._handler.answer_s
        self._unread_mark = (now, unread_bytes)
        return False
