"""Budget of bytes and the claims on it, for the machine's memory or one GPU's memory.

A budget knows the free space, the reservations of `hot` deployments and the evictions for a claim.
`MemoryAllocator` decides the order of claims and the share of several budgets that a replica gets.
"""

import time
from collections.abc import Callable, Collection, Iterable

from stoker.base.errors import CapacityError
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.candidates import Candidates, EvictionCandidate
from stoker.runtime.local.memory.claims import MemoryClaims, Need
from stoker.runtime.local.memory.devices import Device

LENT_IDLE_S = 30.0
"""Seconds without a request before replicas of others are evicted for a hot replica on lent
memory.
"""


class Budget(MemoryClaims):
    def __init__(
        self,
        name: str,
        total: int,
        candidates: Candidates,
        clock: Callable[[], float] = time.monotonic,
        *,
        hot_share: float = 1.0,
        device: Device | None = None,
    ) -> None:
        """
        Args:
            name: name of the memory, for messages.
            total: size in bytes.
            hot_share: the fraction that one account may keep `hot` next to others.
            device: owner of the memory. None means the machine.
        """
        super().__init__()
        self.name = name
        self.total = total
        self.device = device
        self.used_bytes: int | None = None
        """Bytes of the device in use by all processes. None if unknown."""
        self.other_bytes = 0
        """Bytes of the device held by processes that are not replicas of this server. The total is
        smaller by them.
        """
        self._hot_fraction = hot_share
        self._candidates = candidates
        self._clock = clock
        self._reserved: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        """Maps each deployment with reserved memory to its account."""

    @property
    def _hot_share(self) -> int:
        """Bytes that one account may keep `hot` next to others."""
        return int(self.total * self._hot_fraction)

    # --- capacity ---

    def grow(self, replica_id: str, size: int, spare: int) -> bool:
        """Adds to a replica's claim if that leaves `spare` bytes free. Returns True if it did."""
        claim = self._claims.get(replica_id)
        if claim is None or self.room(claim.deployment_id, claim.account) < size + spare:
            return False
        claim.size += size
        return True

    def room(self, deployment_id: str, account: str = "") -> int:
        """Returns the bytes that a deployment could claim now without an eviction. May be
        negative.
        """
        return self.total - self._kept_from(deployment_id, account) - self._held_by(deployment_id)

    def room_of(self, replica_id: str) -> int:
        """Returns the bytes that one replica could hold if all idle replicas were evicted for
        it.
        """
        own_claim = self._claims.get(replica_id)
        if own_claim is None:
            return 0
        idle = {
            candidate.replica_id for candidate in self._candidates.idle() if not candidate.is_hot
        }
        leaving = sum(
            claim.size
            for other, claim in self._claims.items()
            if claim is not own_claim and (claim.is_ending or other in idle)
        )
        return self.room(own_claim.deployment_id, own_claim.account) + own_claim.size + leaving

    def check(self, need: Need) -> None:
        """Raises `CapacityError` if the need cannot fit next to the reservations of others."""
        kept_for = self._reserved_by_account(need.deployment_id)
        reserved = kept_for.pop(need.account, 0)
        reserved += sum(min(size, self._hot_share) for size in kept_for.values())
        if need.size > self.total - reserved:
            note = f", {in_words(reserved)} of it reserved for hot deployments" if reserved else ""
            raise CapacityError(
                f"The model needs about {in_words(need.size)} of {self.name} and cannot fit: all "
                f"models together may take {in_words(self.total)}{note}.{self._others()}",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def check_hot(self, need: Need, *, is_alone: bool) -> None:
        """Raises `CapacityError` if the memory cannot be reserved for a deployment of the account.

        Args:
            is_alone: no other account has deployments.
        """
        self.check(need)
        if is_alone or need.size <= self.reserved_for(need.deployment_id):
            return
        reserved = self._reserved_by_account(need.deployment_id).get(need.account, 0)
        if reserved + need.size > self._hot_share:
            raise CapacityError(
                f"The model needs about {in_words(need.size)} of {self.name}, which cannot be "
                "reserved for it. While other accounts have deployments, an account may reserve "
                f"{in_words(self._hot_share)} for hot deployments. This account already reserves "
                f"{in_words(reserved)}. Set 'readiness' to 'warm'.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def shortage(self, need: Need) -> str:
        """Returns why a deployment's claim waits, in words."""
        room = max(0, self.room(need.deployment_id, need.account))
        return (
            f"The model needs about {in_words(need.size)} of {self.name}, but only "
            f"{in_words(room)} of {in_words(self.total)} is free. Busy models hold the rest."
            f"{self._others()}"
        )

    def _others(self) -> str:
        if not self.other_bytes:
            return ""
        return f" Other processes hold {in_words(self.other_bytes)} in addition."

    # --- reservations ---

    @property
    def reserved(self) -> int:
        """Bytes reserved for `hot` deployments, loaded or not."""
        return sum(self._reserved.values())

    def reserved_for(self, deployment_id: str) -> int:
        return self._reserved.get(deployment_id, 0)

    def unclaimed(self, deployment_id: str) -> int:
        """Returns the bytes that are reserved for a deployment and not held by its replicas. May be
        negative.
        """
        return self.reserved_for(deployment_id) - self._held_by(deployment_id)

    def reserve(self, need: Need) -> None:
        """Reserves memory for a `hot` deployment, whether it is loaded or not."""
        self._reserved[need.deployment_id] = need.size
        self._owners[need.deployment_id] = need.account

    def unreserve(self, deployment_id: str) -> bool:
        """Removes a deployment's reservation. Returns True if it existed."""
        self._owners.pop(deployment_id, None)
        return self._reserved.pop(deployment_id, None) is not None

    def is_lent(self, need: Need) -> bool:
        """Returns True if a `hot` deployment's claim exceeds the share that its account may keep
        hot.
        """
        if need.deployment_id not in self._reserved:
            return False
        return self._hot_held().get(need.account, 0) + need.size > self._hot_share

    # --- evictions ---

    def victims(
        self,
        need: Need,
        missing: int,
        *,
        wanted_by: Collection[str],
        is_patient: bool,
        beside: Collection[str] = (),
    ) -> list[EvictionCandidate] | None:
        """Returns the replicas to evict for a claim. None if evicting all of them is not enough.

        Args:
            missing: missing bytes. No eviction is needed if this is 0 or less.
            wanted_by: the accounts that wait for this budget.
            is_patient: the claim has waited so long that working replicas are drained for it.
            beside: replicas that are evicted anyway.
        """
        chosen: list[EvictionCandidate] = []
        for candidate in self._evictable(need, wanted_by, is_patient=is_patient):
            if missing <= 0:
                break
            if candidate.replica_id not in beside:
                chosen.append(candidate)
                missing -= self._size(candidate)
        if missing > 0:
            return None
        victims: list[EvictionCandidate] = []
        for candidate in reversed(chosen):
            if missing + self._size(candidate) <= 0:
                missing += self._size(candidate)
            else:
                victims.append(candidate)
        return victims

    @property
    def excess(self) -> int:
        """Bytes held beyond the total, because replicas may grow. 0 or less means none."""
        return self.held - self.leaving - self.total

    def surplus(self, wanted_by: Collection[str]) -> list[EvictionCandidate]:
        """Returns the idle replicas to evict until the rest fits again."""
        excess = self.excess
        victims: list[EvictionCandidate] = []
        idle = [replica for replica in self._here(self._candidates.idle()) if not replica.is_hot]
        for candidate in self._in_order(idle, wanted_by):
            if excess <= 0:
                break
            excess -= self._size(candidate)
            victims.append(candidate)
        return victims

    def _evictable(
        self, need: Need, wanted_by: Collection[str], *, is_patient: bool
    ) -> list[EvictionCandidate]:
        """Returns the replicas that may be evicted for a claim, in order."""
        idle = self._here(self._candidates.idle())
        if self.is_lent(need):
            # A claim on lent memory does not immediately take back memory that was just reclaimed
            # from it.
            before = self._clock() - LENT_IDLE_S
            account = need.account
            return self._in_order(
                (
                    candidate
                    for candidate in idle
                    if not candidate.is_hot
                    and (self._account(candidate) == account or candidate.since <= before)
                ),
                wanted_by,
            )
        evictable = self._in_order(
            (candidate for candidate in idle if not candidate.is_hot), wanted_by
        )
        evictable += self._lent_to_others(
            need, [candidate for candidate in idle if candidate.is_hot], wanted_by
        )
        if is_patient:
            evictable += self._in_order(self._here(self._candidates.working()), wanted_by)
        return evictable

    def _lent_to_others(
        self, need: Need, hot: list[EvictionCandidate], wanted_by: Collection[str]
    ) -> list[EvictionCandidate]:
        """Returns the idle `hot` replicas on lent memory that is due to the waiting account."""
        has = self.by_account().get(need.account, 0)
        if has + need.size > self._fair_share(wanted_by):
            return []
        lent = {account: size - self._hot_share for account, size in self._hot_held().items()}
        lent_candidates: list[EvictionCandidate] = []
        for candidate in self._in_order(hot, wanted_by):
            account = self._account(candidate)
            if account != need.account and lent.get(account, 0) > 0:
                lent[account] -= self._size(candidate)
                lent_candidates.append(candidate)
        return lent_candidates

    def _in_order(
        self, candidates: Iterable[EvictionCandidate], wanted_by: Collection[str]
    ) -> list[EvictionCandidate]:
        """Sorts candidates by the order of eviction."""
        remaining = sorted(candidates, key=_eviction_order)
        has = self.by_account()
        if len(has) < 2:
            return remaining
        fair, ordered = self._fair_share(wanted_by), list[EvictionCandidate]()
        while remaining:
            # Among accounts with the same excess over their share, the order above decides.
            chosen = max(
                remaining, key=lambda candidate: max(0, has.get(self._account(candidate), 0) - fair)
            )
            remaining.remove(chosen)
            ordered.append(chosen)
            account = self._account(chosen)
            has[account] = has.get(account, 0) - self._size(chosen)
        return ordered

    def _fair_share(self, wanted_by: Collection[str]) -> int:
        """Returns the bytes per account if all accounts that want memory now had an equal share."""
        accounts = {claim.account for claim in self._claims.values()}
        accounts |= set(wanted_by) | set(self._owners.values())
        return self.total // max(1, len(accounts))

    def _here(self, candidates: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
        """Returns the candidates that hold memory of this budget."""
        return [candidate for candidate in candidates if self._size(candidate)]

    def _size(self, candidate: EvictionCandidate) -> int:
        claim = self._claims.get(candidate.replica_id)
        return claim.size if claim and not claim.is_ending else 0

    def _account(self, candidate: EvictionCandidate) -> str:
        claim = self._claims.get(candidate.replica_id)
        return claim.account if claim else ""

    def _hot_held(self) -> dict[str, int]:
        """Returns the bytes held by replicas of `hot` deployments, by account."""
        held_by_account: dict[str, int] = {}
        for claim in self._claims.values():
            if not claim.is_ending and claim.deployment_id in self._reserved:
                held_by_account[claim.account] = held_by_account.get(claim.account, 0) + claim.size
        return held_by_account

    def _reserved_by_account(self, beside: str) -> dict[str, int]:
        """Returns the reserved bytes by account, without one deployment."""
        reserved: dict[str, int] = {}
        for deployment_id, size in self._reserved.items():
            if deployment_id != beside:
                account = self._owners[deployment_id]
                reserved[account] = reserved.get(account, 0) + size
        return reserved

    def _kept_from(self, deployment_id: str, account: str) -> int:
        """Returns the bytes held by others and reserved for them. Reservations of other accounts
        count up to their share.
        """
        held_by_deployment = self._by_deployment()
        held_by_deployment.pop(deployment_id, None)
        loaded: dict[str, int] = {}
        free: dict[str, int] = {}
        for other, reserved in self._reserved.items():
            if other != deployment_id:
                owner, held_size = self._owners[other], held_by_deployment.get(other, 0)
                loaded[owner] = loaded.get(owner, 0) + held_size
                free[owner] = free.get(owner, 0) + max(0, reserved - held_size)
        unavailable = sum(held_by_deployment.values()) + free.pop(account, 0)
        for owner, size in free.items():
            unavailable += min(size, max(0, self._hot_share - loaded[owner]))
        return unavailable


def _eviction_order(candidate: EvictionCandidate) -> tuple[bool, float]:
    return candidate.is_warm, candidate.since
