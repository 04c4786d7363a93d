"""The pools of all deployments, and which of them are due for upkeep."""

import logging
from collections.abc import Iterator

from stoker.base.errors import NotFoundError
from stoker.runtime.pool.deployment_pool import DeploymentPool

log = logging.getLogger(__name__)


class PoolRegistry:
    def __init__(self) -> None:
        self._pools: dict[str, DeploymentPool] = {}
        self.due: dict[str, DeploymentPool] = {}
        """Pools that may need upkeep: of thousands that are known, few have anything to do."""

    def __iter__(self) -> Iterator[DeploymentPool]:
        return iter(self._pools.values())

    def get(self, deployment_id: str) -> DeploymentPool | None:
        return self._pools.get(deployment_id)

    def find(self, deployment_id: str) -> DeploymentPool:
        """Raises `NotFoundError`."""
        pool = self._pools.get(deployment_id)
        if pool is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        return pool

    def add(self, pool: DeploymentPool) -> None:
        self._pools[pool.spec.id] = pool

    def pop(self, deployment_id: str) -> DeploymentPool | None:
        return self._pools.pop(deployment_id, None)

    def mark_due(self, deployment_id: str) -> None:
        """The next `tick` is to reach it. Raises `NotFoundError`."""
        self.due[deployment_id] = self.find(deployment_id)

    def tick(self) -> None:
        """A round of upkeep: of the pools that are due, which stay so while they need it."""
        for deployment_id, pool in list(self.due.items()):
            if not pool.needs_upkeep:
                del self.due[deployment_id]
                continue
            try:
                pool.tick()
            except Exception:
                log.exception("maintenance of a deployment failed; retrying")
