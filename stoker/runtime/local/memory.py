"""How much memory replicas may hold together, who gets it next and who is evicted.

Admission goes by bytes and first come, first served. Where there is no room, idle replicas are
evicted: of `cold` deployments first, then of `warm` ones, least recently used first. One that works
is never killed for it; but where claims have waited for `PATIENCE_S`, it is drained, so that it
ends once it has finished, and the deployments take turns.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from stoker.errors import CapacityError
from stoker.runtime.pool.amounts import in_words

PATIENCE_S = 3.0
"""Seconds that a claim waits before replicas that work are drained for it."""
SHARE = 0.8
"""Of the machine's memory, what replicas may take where no setting says so: the rest is for the
server, the engines' shared code, conversions and the files that the kernel keeps."""


@dataclass(frozen=True)
class Candidate:
    """A ready replica that may be evicted for others."""

    replica_id: str
    is_warm: bool
    since: float
    """An idle one: its last request; one that works: since when it is ready. Monotonic, seconds."""


class Candidates(Protocol):
    """The replicas, as the runtime knows them; none of `hot` deployments is among them."""

    def idle(self) -> Iterable[Candidate]: ...

    def working(self) -> Iterable[Candidate]: ...

    def evict(self, replica_id: str) -> None:
        """Give it no further requests; once it has finished what it has, it ends."""
        ...


@dataclass(eq=False)
class _Claim:
    deployment_id: str
    size: int
    is_ending: bool = False


@dataclass(eq=False)
class _Waiter:
    replica_id: str
    deployment_id: str
    need: int
    since: float
    granted: "asyncio.Future[None]"


class Memory:
    """A budget of bytes and the claims on it. All of it runs on the event loop."""

    def __init__(
        self, total: int, candidates: Candidates, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = total
        self._candidates = candidates
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._reserved: dict[str, int] = {}
        self._waiters: list[_Waiter] = []

    # --- who holds what ---

    @property
    def held(self) -> int:
        return sum(claim.size for claim in self._claims.values())

    def room(self, deployment_id: str) -> int:
        """What a deployment could take now without an eviction, bytes; may be negative."""
        return self.total - self._kept_from(deployment_id) - self._held_by(deployment_id)

    def reserve(self, deployment_id: str, need: int) -> None:
        """Keep memory for a `hot` deployment, whether it is loaded or not."""
        self._reserved[deployment_id] = need
        self.settle()

    def unreserve(self, deployment_id: str) -> None:
        if self._reserved.pop(deployment_id, None) is not None:
            self.settle()

    def check(self, deployment_id: str, need: int) -> None:
        """Raises `CapacityError` where so much cannot fit beside what is reserved for others."""
        reserved = sum(size for other, size in self._reserved.items() if other != deployment_id)
        if need > self.total - reserved:
            kept = f", {in_words(reserved)} of it reserved for hot deployments" if reserved else ""
            raise CapacityError(
                f"The model needs about {in_words(need)} of memory and cannot fit: all models "
                f"together may take {in_words(self.total)}{kept}.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    # --- claims ---

    async def claim(self, replica_id: str, deployment_id: str, need: int) -> None:
        """Wait until a replica may take `need` bytes, evicting others for it.

        Raises `CapacityError` where it can never fit.
        """
        self.check(deployment_id, need)
        waiter = _Waiter(
            replica_id,
            deployment_id,
            need,
            self._clock(),
            asyncio.get_running_loop().create_future(),
        )
        self._waiters.append(waiter)
        self.settle()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            # It may have been granted and cancelled at once.
            self.release(replica_id)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def take(self, replica_id: str, deployment_id: str, need: int) -> bool:
        """Claim what is free without passing a claim that waits; False where that is too little.

        Raises `CapacityError` where it can never fit.
        """
        self.check(deployment_id, need)
        if self._waiters or need > self.room(deployment_id):
            return False
        self._claims[replica_id] = _Claim(deployment_id, need)
        return True

    def resize(self, replica_id: str, size: int) -> None:
        """A replica was measured."""
        claim = self._claims.get(replica_id)
        if claim and claim.size != size:
            claim.size = size
            self.settle()

    def ending(self, replica_id: str) -> None:
        """A replica is about to end: its memory will be free."""
        if claim := self._claims.get(replica_id):
            claim.is_ending = True

    def release(self, replica_id: str) -> None:
        if self._claims.pop(replica_id, None):
            self.settle()

    def shortage(self, deployment_id: str, need: int) -> str:
        """Why a deployment's claim waits, in words."""
        room = max(0, self.room(deployment_id))
        return (
            f"The model needs about {in_words(need)} of memory and {in_words(room)} of "
            f"{in_words(self.total)} are free: the rest is held by models that are busy."
        )

    def settle(self) -> None:
        """Grant what fits, and make room for the one that has waited longest."""
        self._evict_excess()
        first: _Waiter | None = None
        for waiter in list(self._waiters):
            if waiter.granted.done():
                continue
            if waiter.need <= self.room(waiter.deployment_id):
                # Others may go before the first one, but not for ever.
                if first is None or self._clock() - first.since < PATIENCE_S:
                    self._grant(waiter)
            elif first is None:
                first = waiter
                self._make_room(waiter)

    def _grant(self, waiter: _Waiter) -> None:
        self._claims[waiter.replica_id] = _Claim(waiter.deployment_id, waiter.need)
        self._waiters.remove(waiter)
        waiter.granted.set_result(None)

    def _make_room(self, waiter: _Waiter) -> None:
        missing = waiter.need - self.room(waiter.deployment_id) - self._ending()
        if missing <= 0:
            return
        candidates = sorted(self._candidates.idle(), key=_eviction_order)
        if self._clock() - waiter.since >= PATIENCE_S:
            candidates += sorted(self._candidates.working(), key=_eviction_order)
        chosen: list[Candidate] = []
        for candidate in candidates:
            if missing <= 0:
                break
            chosen.append(candidate)
            missing -= self._size(candidate)
        if missing > 0:
            # Not even all of them would do: it waits until others have finished.
            return
        for candidate in reversed(chosen):
            if missing + self._size(candidate) <= 0:
                missing += self._size(candidate)
            else:
                self._evict(candidate)

    def _evict_excess(self) -> None:
        """Replicas may grow: evict idle ones until the rest fits again."""
        excess = self.held - self._ending() - self.total
        for candidate in sorted(self._candidates.idle(), key=_eviction_order) if excess > 0 else ():
            if excess <= 0:
                return
            excess -= self._size(candidate)
            self._evict(candidate)

    def _evict(self, candidate: Candidate) -> None:
        self.ending(candidate.replica_id)
        self._candidates.evict(candidate.replica_id)

    def _size(self, candidate: Candidate) -> int:
        claim = self._claims.get(candidate.replica_id)
        return claim.size if claim and not claim.is_ending else 0

    def _ending(self) -> int:
        return sum(claim.size for claim in self._claims.values() if claim.is_ending)

    def _held_by(self, deployment_id: str) -> int:
        return sum(
            claim.size for claim in self._claims.values() if claim.deployment_id == deployment_id
        )

    def _kept_from(self, deployment_id: str) -> int:
        """What others hold, and what is kept for them."""
        held: dict[str, int] = dict(self._reserved)
        taken: dict[str, int] = {}
        for claim in self._claims.values():
            taken[claim.deployment_id] = taken.get(claim.deployment_id, 0) + claim.size
        for other, size in taken.items():
            held[other] = max(held.get(other, 0), size)
        held.pop(deployment_id, None)
        return sum(held.values())


def _eviction_order(candidate: Candidate) -> tuple[bool, float]:
    return candidate.is_warm, candidate.since
