"""Applies changes by other servers of the same PostgreSQL to the work in progress on this one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stoker.platform.jobs.runner import JobRunner
from stoker.registry.artifacts import upkeep
from stoker.store.waiting import repeated
from stoker.workloads.agents import run_service
from stoker.workloads.agents.context import AgentContext

LOOK_S = 1.0


class PeerSync:
    def __init__(self, agents: AgentContext, runners: Sequence[JobRunner[Any, Any]]) -> None:
        self._looks: list[Callable[[], Awaitable[None]]] = [
            lambda: run_service.catch_up(agents),
            lambda: upkeep.end_closed(agents.database),
            *(runner.let_go for runner in runners),
        ]

    async def run(self) -> None:
        await repeated(self.look, LOOK_S, "reading what other servers have done")

    async def look(self) -> None:
        for look in self._looks:
            await look()
