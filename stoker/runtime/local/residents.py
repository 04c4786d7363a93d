"""The replicas that have a process here, and which of them may be evicted for others."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stoker.runtime.interface import DeploymentSpec, Readiness, Status
from stoker.runtime.local.memory import Candidate
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.handle import ReplicaHandle


@dataclass
class Resident:
    replica: ReplicaHandle
    pool: DeploymentPool
    spec: DeploymentSpec
    """What it was started as; the pool's may have been changed since."""
    model_dir: Path
    conversion: Path


class Residents(dict[str, Resident]):
    """By the replica's id. They are the `Candidates` of the memory's budget."""

    def idle(self) -> Iterable[Candidate]:
        return [
            Candidate(one.replica.id, _is_warm(one.pool.spec), one.replica.last_used)
            for one in self._evictable()
            if one.pool.is_idle(one.replica)
        ]

    def working(self) -> Iterable[Candidate]:
        return [
            Candidate(one.replica.id, _is_warm(one.pool.spec), one.replica.ready_at)
            for one in self._evictable()
            if not one.pool.is_idle(one.replica)
        ]

    def evict(self, replica_id: str) -> None:
        resident = self[replica_id]
        resident.pool.evict(resident.replica)

    def _evictable(self) -> list[Resident]:
        return [
            one
            for one in self.values()
            if one.replica.status is Status.READY and one.pool.spec.readiness is not Readiness.HOT
        ]


def _is_warm(spec: DeploymentSpec) -> bool:
    return spec.readiness is Readiness.WARM or spec.min_replicas > 0
