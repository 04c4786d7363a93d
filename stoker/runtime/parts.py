"""An answer, piece by piece, for who waits for it."""

import asyncio


class Parts:
    """What has come of an answer and was not taken yet."""

    def __init__(self) -> None:
        self.ended = False
        """Whether nothing more will come."""
        self._parts: list[bytes] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self, timeout_s: float | None = None) -> bytes:
        """All that has come since the last time, waiting for something; nothing at the end.

        Raises `TimeoutError` when nothing came in that time, and the error that `fail` was given.
        """
        while not self._parts:
            if self._error:
                raise self._error
            if self.ended:
                return b""
            await self._wait(timeout_s)
        content = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return content

    async def _wait(self, timeout_s: float | None) -> None:
        # Every token waits here: a bare timer costs a fraction of `asyncio.timeout`.
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _late, waiter) if timeout_s is not None else None
        try:
            await waiter
        finally:
            self._waiter = None
            if timer:
                timer.cancel()

    def add(self, content: bytes) -> None:
        self._parts.append(content)
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """End it with an error, which comes after what is there already."""
        if not self.ended:
            self._error = error
            self.end()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


def _late(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
