"""Waits of the asynchronous client. The synchronous client has its own version of this module."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[[], Result], stop: threading.Event | None = None) -> Result:
    """Runs a blocking function in a thread. Cancellation sets `stop` and waits for its end."""
    work = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if stop:
            stop.set()
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
        raise
