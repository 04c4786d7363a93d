"""Background tasks that run as long as the server. A task that ends early is logged and
restarted.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

RESTART_S = 1.0


async def bounded(what: str, step: Coroutine[Any, Any, None], limit_s: float) -> None:
    """Waits at most `limit_s` seconds for a shutdown step. Logs a timeout or failure and
    returns.
    """
    task = asyncio.ensure_future(step)
    await asyncio.wait([task], timeout=limit_s)
    if not task.done():
        # The step may ignore the cancellation, so it is not awaited.
        task.cancel()
        log.error("shutdown step timed out", extra={"step": what})
    elif not task.cancelled() and (error := task.exception()):
        log.error("shutdown step failed", exc_info=error, extra={"step": what})


class Background:
    def __init__(self, restart_s: float = RESTART_S) -> None:
        self._restart_s = restart_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: set[str] = set()

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task until it is stopped. Restarts the task if it ends before.

        Raises `ValueError` if a task with this name runs.
        """
        if name in self._tasks:
            raise ValueError(f"Two background tasks are called {name!r}.")
        self._tasks[name] = asyncio.create_task(self._keep(name, work))

    async def stop(self, *names: str) -> None:
        """Stops the named tasks and returns once they have ended. The order is not defined."""
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop_all(self) -> None:
        await self.stop(*self._tasks)

    @property
    def problem(self) -> str | None:
        """Describes the tasks that are not running. None if all run."""
        ended = self._ended | {name for name, task in self._tasks.items() if task.done()}
        if not ended:
            return None
        return f"Background tasks ended and are being restarted: {', '.join(sorted(ended))}."

    async def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
                log.error("background task ended; restarting it", extra={"work": name})
            except Exception:
                log.exception("background task failed; restarting it", extra={"work": name})
            self._ended.add(name)
            await asyncio.sleep(self._restart_s)
            self._ended.discard(name)
