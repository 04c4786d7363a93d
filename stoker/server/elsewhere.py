"""What other servers of the same PostgreSQL have done to what this one is at."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stoker.agents import run_service
from stoker.agents.context import AgentContext
from stoker.artifacts import service as artifacts
from stoker.jobs.runner import Runner

log = logging.getLogger(__name__)

LOOK_S = 1.0


class Elsewhere:
    def __init__(self, agents: AgentContext, runners: Sequence[Runner[Any, Any]]) -> None:
        self._looks: list[Callable[[], Awaitable[None]]] = [
            lambda: run_service.catch_up(agents),
            lambda: artifacts.end_closed(agents.database),
            *(runner.let_go for runner in runners),
        ]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        for look in self._looks:
            try:
                await look()
            except Exception as error:
                log.warning("what other servers do could not be read: %s", error)
