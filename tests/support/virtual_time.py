"""An event loop whose clock jumps to the next timer instead of waiting for it."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

_THREAD_S = 0.01
"""Real seconds to wait for a thread between two checks."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0
        """Number of calls that run in threads. The clock stands still meanwhile."""

    def select(self, timeout: float | None = None) -> Any:
        if events := super().select(0):
            return events
        if self.threads or timeout is None:
            return super().select(_THREAD_S)
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs work of minutes in a moment, with the same order of events in each run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> Any:
        self._jumping.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1


def run(work: Any) -> Any:
    """Runs a coroutine in virtual time. Returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
