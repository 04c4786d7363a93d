"""Describes the replicas that may be evicted, for the memory budget."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class EvictionCandidate:
    """A ready replica that may be evicted for others."""

    replica_id: str
    is_warm: bool
    since: float
    """Time of an idle replica's last request, or of the moment a working one became ready.
    Monotonic, seconds.
    """
    call_rate: float = 0.0
    """Calls per second of an idle replica's deployment."""
    is_hot: bool = False
    """True if the replica is only evicted when its memory is lent."""
    can_sleep: bool = False
    """True if its GPU memory can be moved to main memory instead."""
    is_prepared: bool = False
    """True for a prepared worker, which is evicted before any replica."""
    moved_bytes: int | None = None
    """Bytes of main memory that sleep needs. None: as many as the replica holds of its only device.
    """


class Candidates(Protocol):
    """Replicas of the runtime that may be evicted."""

    def idle(self) -> Iterable[EvictionCandidate]: ...

    def working(self) -> Iterable[EvictionCandidate]:
        """Returns working replicas, without those of `hot` deployments."""
        ...

    def evict(self, replica_id: str) -> None:
        """Stops sending requests to the replica. It ends after its current requests."""
        ...

    def put_to_sleep(self, replica_id: str) -> None:
        """Moves the replica's GPU memory to main memory, after its current requests."""
        ...
