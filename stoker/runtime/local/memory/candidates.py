"""Which replicas may be evicted, as the memory's budget wants to know it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Candidate:
    """A ready replica that may be evicted for others."""

    replica_id: str
    is_warm: bool
    since: float
    """An idle one: its last request; one that works: since when it is ready. Monotonic, seconds."""
    is_hot: bool = False
    """Evicted only where its memory is lent."""


class Candidates(Protocol):
    """The replicas, as the runtime knows them."""

    def idle(self) -> Iterable[Candidate]: ...

    def working(self) -> Iterable[Candidate]:
        """None of `hot` deployments is among them."""
        ...

    def evict(self, replica_id: str) -> None:
        """Give it no further requests; once it has finished what it has, it ends."""
        ...
