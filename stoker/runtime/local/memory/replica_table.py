"""The replicas that have a process here, and which of them may be evicted for others."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.runtime.local.memory.candidates import Candidate
from stoker.runtime.observed import Status
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec, Readiness


@dataclass
class Resident:
    replica: ReplicaHandle
    pool: DeploymentPool
    spec: DeploymentSpec
    """What it was started as; the pool's may have been changed since."""
    model_dir: Path
    conversion: Path
    inherited: int | None = None
    """Bytes of memory that it was forked with, which it shares with all; None: not measured yet."""
    used: int = 0
    """Bytes that it and the processes below it hold beside those, as they were last measured."""
    below: int = 0
    """Bytes that the processes below it hold."""
    may_write: int | None = None
    """Bytes that its own folder may hold; None: not looked at yet."""


class Background(Protocol):
    """Work that holds memory and may be put off."""

    def evictable(self) -> Iterable[Candidate]: ...

    def evict(self, job_id: str) -> None: ...


class ReplicaTable(dict[str, Resident]):
    """By the replica's id. They are the `Candidates` of the memory's budget."""

    background: Background | None = None
    """What may have to go for them."""

    def idle(self) -> Iterable[Candidate]:
        others = self.background.evictable() if self.background else ()
        return [
            *others,
            *self._idle(),
        ]

    def _idle(self) -> Iterable[Candidate]:
        return [
            Candidate(
                one.replica.id,
                _is_warm(one.pool.spec),
                one.replica.last_used,
                is_hot=_is_hot(one.pool.spec),
            )
            for one in self._ready()
            if one.pool.is_idle(one.replica)
        ]

    def working(self) -> Iterable[Candidate]:
        return [
            Candidate(one.replica.id, _is_warm(one.pool.spec), one.replica.ready_at)
            for one in self._ready()
            if not one.pool.is_idle(one.replica) and not _is_hot(one.pool.spec)
        ]

    def evict(self, replica_id: str) -> None:
        if resident := self.get(replica_id):
            resident.pool.evict(resident.replica)
        elif self.background:
            self.background.evict(replica_id)

    def _ready(self) -> list[Resident]:
        return [one for one in self.values() if one.replica.status is Status.READY]


def _is_warm(spec: DeploymentSpec) -> bool:
    return spec.readiness is Readiness.WARM or spec.min_replicas > 0


def _is_hot(spec: DeploymentSpec) -> bool:
    return spec.readiness is Readiness.HOT
