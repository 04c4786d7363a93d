"""A call's answer, piece by piece, and what replicas report of the call."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.runtime.interface import OnProgress


@dataclass(eq=False)
class CallStats:
    """What replicas have reported of a call: counts and times, microseconds, as of `Result`."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    times: dict[str, int] = field(default_factory=dict[str, int])
    is_pending: bool = False
    """Whether a replica has yet to report what a cancelled call came to."""
    _callback: Callable[[], None] | None = None

    def when_complete(self, callback: Callable[[], None]) -> None:
        """Call back when nothing more will be reported: now, or in a moment."""
        if self.is_pending:
            self._callback = callback
        else:
            callback()

    def complete(self, counts: Mapping[str, int]) -> None:
        """What a cancelled call came to was reported, or never will be."""
        self.is_pending = False
        self.counts.update(counts)
        if self._callback:
            self._callback()


class Answer:
    """What has come of an answer and was not taken yet."""

    def __init__(self, begun_at: float, stats: CallStats) -> None:
        self.last_activity_at = begun_at
        """Monotonic, seconds: when parts or progress last came, or it was begun."""
        self.stats = stats
        self.on_progress: OnProgress | None = None
        self._parts: list[bytes] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False
        """Whether the replica has nothing left to do for it."""

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
