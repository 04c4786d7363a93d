"""Applies changes by other servers of the same PostgreSQL to the work in progress on this one."""

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources
from stoker.store.waiting import repeated

LOOK_S = 1.0


class PeerSync:
    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    async def run(self) -> None:
        await repeated(self.look, LOOK_S, "reading what other servers have done")

    async def look(self) -> None:
        resources = self._parts.get(Resources)
        for resource in resources:
            await resource.catch_up(self._parts)
        for jobs in resources.jobs:
            await jobs.runner(self._parts).let_go()
