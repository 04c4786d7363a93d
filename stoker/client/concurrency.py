"""Waits of the synchronous client."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def in_thread(function: Callable[[], Result], stop: threading.Event | None = None) -> Result:
    """Runs a function. Ctrl-C sets `stop`."""
    try:
        return function()
    except KeyboardInterrupt:
        if stop:
            stop.set()
        raise
