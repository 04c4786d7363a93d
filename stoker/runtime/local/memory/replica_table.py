"""Table of the replicas with a process here, and which of them may be evicted for others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.models.engines import environments
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.observed import Status
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec, Readiness


@dataclass
class Resident:
    replica: ReplicaHandle
    pool: DeploymentPool
    spec: DeploymentSpec
    """Specification at the start. The pool's specification may have changed since."""
    model_dir: Path
    conversion: Path
    engine: str = ""
    """Engine that it was started with, if that was chosen for it."""
    inherited: int | None = None
    """Bytes of memory inherited from the fork and shared with all replicas. None if not measured
    yet.
    """
    used: int = 0
    """Last measured bytes held by the replica and its descendants, without the inherited ones."""
    below: int = 0
    """Bytes held by the replica's descendant processes."""
    descendants: Sequence[int] = ()
    """Its descendant processes."""
    stale_bytes: int = 0
    """Value of `Vitals.own_bytes` that includes GPU memory, because it was measured while the
    replica slept.
    """
    device_context: int | None = None
    """Bytes that the process holds of each of its GPUs in addition to those of torch: CUDA's
    context and libraries. None if not measured.
    """
    is_prepared: bool = False
    """True if it started in a prepared worker, which cannot read the model's conversions."""
    may_write: int | None = None
    """Maximum bytes of the replica's own folder. None if not determined yet."""

    @property
    def is_apart(self) -> bool:
        """True if its engine runs in a separate Python environment."""
        return (self.engine or self.spec.engine) in environments.NAMES

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that its engine moves to main memory by itself. None if the driver would do that.

        Only set for engines in a separate environment, so that no other replica can report less
        than the driver moves.
        """
        return self.replica.sleep_bytes if self.is_apart else None


class BackgroundWork(Protocol):
    """Work that holds memory and may be postponed."""

    def evictable(self) -> Iterable[EvictionCandidate]: ...

    def evict(self, job_id: str) -> None:
        """Ends a piece of work. Ignores ids of other work."""
        ...


class ReplicaTable(dict[str, Resident]):
    """Maps replica ids to residents. Provides the `Candidates` of the memory's budget."""

    backgrounds: Sequence[BackgroundWork] = ()
    """Background work that may be evicted for replicas."""
    can_sleep: Callable[[Resident], bool] | None = None
    """Returns True if a replica's GPU memory can be moved to main memory. None: no replica's."""

    def idle(self) -> Iterable[EvictionCandidate]:
        return [
            *(candidate for work in self.backgrounds for candidate in work.evictable()),
            *self._asleep(),
            *self._idle(),
        ]

    def _idle(self) -> Iterable[EvictionCandidate]:
        return [
            EvictionCandidate(
                resident.replica.id,
                resident.pool.spec.is_warm,
                resident.replica.last_live,
                resident.pool.call_rate,
                is_hot=_is_hot(resident.pool.spec),
                can_sleep=self._can_sleep(resident),
                moved_bytes=resident.moved_bytes,
            )
            for resident in self._of_status(Status.READY)
            if resident.pool.is_idle(resident.replica)
        ]

    def _asleep(self) -> Iterable[EvictionCandidate]:
        return [
            EvictionCandidate(
                resident.replica.id,
                is_warm=True,
                since=resident.replica.last_live,
                call_rate=resident.pool.call_rate,
            )
            for resident in self.values()
            if resident.pool.is_asleep(resident.replica)
        ]

    def working(self) -> Iterable[EvictionCandidate]:
        return [
            EvictionCandidate(
                resident.replica.id,
                resident.pool.spec.is_warm,
                resident.replica.ready_at,
                can_sleep=self._can_sleep(resident),
                moved_bytes=resident.moved_bytes,
            )
            for resident in self._of_status(Status.READY)
            if not resident.pool.is_idle(resident.replica) and not _is_hot(resident.pool.spec)
        ]

    def evict(self, replica_id: str) -> None:
        if resident := self.get(replica_id):
            resident.pool.evict(resident.replica)
        else:
            for work in self.backgrounds:
                work.evict(replica_id)

    def put_to_sleep(self, replica_id: str) -> None:
        if resident := self.get(replica_id):
            resident.pool.put_to_sleep(resident.replica)

    def _can_sleep(self, resident: Resident) -> bool:
        return resident.pool.spec.is_warm and bool(self.can_sleep and self.can_sleep(resident))

    def _of_status(self, status: Status) -> list[Resident]:
        return [resident for resident in self.values() if resident.replica.status is status]


def _is_hot(spec: DeploymentSpec) -> bool:
    return spec.readiness is Readiness.HOT
