"""Chooses the event loop of a server's processes."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of uvloop's loops. None if it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
