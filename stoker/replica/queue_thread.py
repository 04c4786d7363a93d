"""A thread that works through a queue."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueThread(Generic[Item]):
    """Handles what is put, in order and one at a time. What the handler raises ends the thread."""

    def __init__(self, name: str, handle: Callable[[Item], None]) -> None:
        self._handle = handle
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Item) -> None:
        """From any thread. None is no item."""
        self._queue.put(item)

    def finish(self) -> None:
        """Handle what was put until now, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._handle(item)
