"""Registry of all deployments' pools, and of the pools that are due for upkeep."""

import asyncio
import logging
from collections.abc import Iterator

from stoker.base.errors import NotFoundError
from stoker.runtime.pool.deployment_pool import DeploymentPool

log = logging.getLogger(__name__)


class PoolRegistry:
    def __init__(self) -> None:
        self._pools: dict[str, DeploymentPool] = {}
        self.due: dict[str, DeploymentPool] = {}
        """Pools that may need upkeep. Of thousands of known pools, few have work."""
        self.has_due = asyncio.Event()
        """Set while `due` has pools."""

    def __iter__(self) -> Iterator[DeploymentPool]:
        return iter(self._pools.values())

    def get(self, deployment_id: str) -> DeploymentPool | None:
        return self._pools.get(deployment_id)

    def find(self, deployment_id: str) -> DeploymentPool:
        """Returns a pool. Raises `NotFoundError`."""
        pool = self._pools.get(deployment_id)
        if pool is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        return pool

    def add(self, pool: DeploymentPool) -> None:
        self._pools[pool.spec.id] = pool

    def pop(self, deployment_id: str) -> DeploymentPool | None:
        return self._pools.pop(deployment_id, None)

    def mark_due(self, deployment_id: str) -> None:
        """Includes a pool in the next `tick`. Raises `NotFoundError`."""
        self.due[deployment_id] = self.find(deployment_id)
        self.has_due.set()

    def tick(self) -> None:
        """Runs one round of upkeep for the pools that are due. They stay due while they need
        upkeep.
        """
        for deployment_id, pool in list(self.due.items()):
            if not pool.needs_upkeep:
                del self.due[deployment_id]
                continue
            try:
                pool.tick()
            except Exception:
                log.exception("maintenance of a deployment failed; retrying")
        if not self.due:
            self.has_due.clear()
