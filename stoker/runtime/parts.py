"""Streams an answer in parts to its waiting caller."""

import asyncio
import math


class AnswerParts:
    """Parts of an answer that have arrived and were not read yet."""

    def __init__(self) -> None:
        self.ended = False
        """True if no more parts will arrive."""
        self._parts: list[bytes] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._due = math.inf
        """Time at which the current wait ends."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    async def next(self, timeout_s: float | None = None) -> bytes:
        """Returns all parts that arrived since the last call, and waits for at least one. Empty at
        the end.

        Raises `TimeoutError` if no part arrived in that time, and the error passed to `fail`.
        """
        while not self._parts:
            if self._error:
                raise self._error
            if self.ended:
                return b""
            try:
                await self._begin_wait(timeout_s)
            finally:
                self._waiter = None
        content = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return content

    async def whole(self, timeout_s: float | None = None) -> bytes:
        """Returns all parts, after the last one has arrived.

        Raises `TimeoutError` if that takes longer than `timeout_s` seconds, and the error passed to
        `fail`.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        content = b""
        while not self.ended or self._parts or self._error:
            content += await self.next(None if until is None else until - loop.time())
        return content

    def _begin_wait(self, timeout_s: float | None) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self._due = math.inf if timeout_s is None else loop.time() + timeout_s
        # Every token waits here, so all waits share a timer.
        if self._due < self._rings_at:
            self._set_timer(loop)
        return waiter

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._rings_at = self._due
        self._timer = loop.call_at(self._due, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._rings_at = None, math.inf
        if self._waiter is None or self._waiter.done():
            return
        if loop.time() < self._due:
            self._set_timer(loop)
        else:
            self._waiter.set_exception(TimeoutError())

    def close(self) -> None:
        """Ends the timer of an answer that is read no further."""
        if self._timer:
            self._timer.cancel()
            self._timer, self._rings_at = None, math.inf

    def add(self, content: bytes) -> None:
        self._parts.append(content)
        self._wake()

    def end(self) -> None:
        self.ended = True
        self.close()
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the answer with an error, which is raised after the parts that have arrived."""
        if not self.ended:
            self._error = error
            self.end()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)
