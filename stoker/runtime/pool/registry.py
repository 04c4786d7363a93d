"""The pools of all deployments, and which of them are looked after."""

import logging
from collections.abc import Iterator

from stoker.errors import NotFoundError
from stoker.runtime.pool.deployment_pool import Pool

log = logging.getLogger(__name__)


class Pools:
    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self.attended: dict[str, Pool] = {}
        """Those that may need upkeep: of thousands that are known, few have anything to do."""

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def get(self, deployment_id: str) -> Pool | None:
        return self._pools.get(deployment_id)

    def find(self, deployment_id: str) -> Pool:
        """Raises `NotFoundError`."""
        pool = self._pools.get(deployment_id)
        if pool is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        return pool

    def add(self, pool: Pool) -> None:
        self._pools[pool.spec.id] = pool

    def pop(self, deployment_id: str) -> Pool | None:
        return self._pools.pop(deployment_id, None)

    def attend(self, deployment_id: str) -> None:
        """It has or will have something to do. Raises `NotFoundError`."""
        self.attended[deployment_id] = self.find(deployment_id)

    def tend(self) -> None:
        for deployment_id, pool in list(self.attended.items()):
            if not pool.needs_upkeep:
                del self.attended[deployment_id]
                continue
            try:
                pool.tick()
            except Exception:
                log.exception("upkeep of a deployment failed; it is tried again")
