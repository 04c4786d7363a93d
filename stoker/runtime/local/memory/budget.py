"""One budget of bytes and the claims on it: of the machine's memory, or of one graphics device's.

It says what fits, what is kept for `hot` deployments, and who would have to go for a claim. Whose
turn it is, and what of several books a replica gets, is decided by `Memory`.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from stoker.base.errors import CapacityError
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.candidates import Candidate, Candidates
from stoker.runtime.local.memory.devices import Device

LENT_IDLE_S = 30.0
"""Seconds without a request after which others' replicas give way to a hot one on lent memory."""


@dataclass(frozen=True)
class Need:
    """What one replica needs of a book."""

    deployment_id: str
    size: int
    """Bytes."""
    account: str = ""


@dataclass(eq=False)
class _Claim:
    deployment_id: str
    size: int
    account: str
    is_ending: bool = False


class Budget:
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
            name: what it is a budget of, in words.
            total: bytes.
            hot_share: the part of it that one account may keep `hot` beside others.
            device: whose memory it is; None: the machine's.
        """
        self.name = name
        self.total = total
        self.device = device
        self._hot_share = int(total * hot_share)
        self._candidates = candidates
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._reserved: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        """Deployments with reserved memory → their accounts."""

    # --- claims ---

    def enter(self, replica_id: str, need: Need) -> None:
        self._claims[replica_id] = _Claim(need.deployment_id, need.size, need.account)

    def resize(self, replica_id: str, size: int) -> bool:
        """A replica was measured. Whether it has a claim here, of another size until now."""
        claim = self._claims.get(replica_id)
        if claim is None or claim.size == size:
            return False
        claim.size = size
        return True

    def ending(self, replica_id: str) -> None:
        """A replica is about to end: its memory will be free."""
        if claim := self._claims.get(replica_id):
            claim.is_ending = True

    def strike(self, replica_id: str) -> bool:
        """Whether there was a claim of it."""
        return self._claims.pop(replica_id, None) is not None

    def has(self, replica_id: str) -> bool:
        return replica_id in self._claims

    def size(self, replica_id: str) -> int:
        """What a replica has claimed, bytes; 0: nothing."""
        claim = self._claims.get(replica_id)
        return claim.size if claim else 0

    @property
    def held(self) -> int:
        return sum(claim.size for claim in self._claims.values())

    @property
    def leaving(self) -> int:
        """What those hold that are about to end."""
        return sum(claim.size for claim in self._claims.values() if claim.is_ending)

    def by_account(self, *, with_ending: bool = False) -> dict[str, int]:
        """What accounts hold."""
        held: dict[str, int] = {}
        for claim in self._claims.values():
            if with_ending or not claim.is_ending:
                held[claim.account] = held.get(claim.account, 0) + claim.size
        return held

    # --- what fits ---

    def room(self, deployment_id: str, account: str = "") -> int:
        """What a deployment could take now without an eviction, bytes; may be negative."""
        return self.total - self._kept_from(deployment_id, account) - self._held_by(deployment_id)

    def room_of(self, replica_id: str) -> int:
        """What one replica could hold if all that are idle made room for it, bytes."""
        own = self._claims.get(replica_id)
        if own is None:
            return 0
        idle = {one.replica_id for one in self._candidates.idle() if not one.is_hot}
        leaving = sum(
            claim.size
            for other, claim in self._claims.items()
            if claim is not own and (claim.is_ending or other in idle)
        )
        return self.room(own.deployment_id, own.account) + own.size + leaving

    def check(self, need: Need) -> None:
        """Raises `CapacityError` where so much cannot fit beside what is reserved for others."""
        kept_for = self._reserved_by_account(need.deployment_id)
        reserved = kept_for.pop(need.account, 0)
        reserved += sum(min(size, self._hot_share) for size in kept_for.values())
        if need.size > self.total - reserved:
            kept = f", {in_words(reserved)} of it reserved for hot deployments" if reserved else ""
            raise CapacityError(
                f"The model needs about {in_words(need.size)} of {self.name} and cannot fit: all "
                f"models together may take {in_words(self.total)}{kept}.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def check_hot(self, need: Need, *, is_alone: bool) -> None:
        """Raises `CapacityError` where so much cannot be kept for a deployment of the account.

        Args:
            is_alone: no other account has deployments.
        """
        self.check(need)
        if is_alone or need.size <= self.reserved_for(need.deployment_id):
            return
        kept = self._reserved_by_account(need.deployment_id).get(need.account, 0)
        if kept + need.size > self._hot_share:
            raise CapacityError(
                f"The model needs about {in_words(need.size)} of {self.name}, which cannot be kept "
                f"for it: beside others, an account may keep {in_words(self._hot_share)} for its "
                f"hot deployments, and this one keeps {in_words(kept)}. Let it be warm.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def shortage(self, need: Need) -> str:
        """Why a deployment's claim waits, in words."""
        room = max(0, self.room(need.deployment_id, need.account))
        return (
            f"The model needs about {in_words(need.size)} of {self.name} and {in_words(room)} of "
            f"{in_words(self.total)} are free: the rest is held by models that are busy."
        )

    # --- what is kept ---

    @property
    def reserved(self) -> int:
        """What is kept for `hot` deployments, loaded or not, bytes."""
        return sum(self._reserved.values())

    def reserved_for(self, deployment_id: str) -> int:
        return self._reserved.get(deployment_id, 0)

    def unclaimed(self, deployment_id: str) -> int:
        """What is kept for a deployment and not held by its replicas, bytes; may be negative."""
        return self.reserved_for(deployment_id) - self._held_by(deployment_id)

    def reserve(self, need: Need) -> None:
        """Keep memory for a `hot` deployment, whether it is loaded or not."""
        self._reserved[need.deployment_id] = need.size
        self._owners[need.deployment_id] = need.account

    def unreserve(self, deployment_id: str) -> bool:
        """Whether there was something kept for it."""
        self._owners.pop(deployment_id, None)
        return self._reserved.pop(deployment_id, None) is not None

    def is_lent(self, need: Need) -> bool:
        """Whether a claim is for what an account keeps hot beyond its share."""
        if need.deployment_id not in self._reserved:
            return False
        return self._hot_held().get(need.account, 0) + need.size > self._hot_share

    # --- who would have to go ---

    def victims(
        self,
        need: Need,
        missing: int,
        *,
        wanted_by: Collection[str],
        is_patient: bool,
        beside: Collection[str] = (),
    ) -> list[Candidate] | None:
        """Those whose ends give a claim what it misses; None: not even all of them would do.

        Args:
            missing: bytes; none and less: nobody has to go.
            wanted_by: the accounts that wait for something of this book.
            is_patient: it has waited for so long that those that work are drained for it.
            beside: replicas that are to go anyway.
        """
        chosen: list[Candidate] = []
        for candidate in self._evictable(need, wanted_by, is_patient=is_patient):
            if missing <= 0:
                break
            if candidate.replica_id not in beside:
                chosen.append(candidate)
                missing -= self._size(candidate)
        if missing > 0:
            return None
        found: list[Candidate] = []
        for candidate in reversed(chosen):
            if missing + self._size(candidate) <= 0:
                missing += self._size(candidate)
            else:
                found.append(candidate)
        return found

    @property
    def excess(self) -> int:
        """Replicas may grow: so much more is held than there is, bytes; 0 and less: none."""
        return self.held - self.leaving - self.total

    def surplus(self, wanted_by: Collection[str]) -> list[Candidate]:
        """The idle ones that are to go, until the rest fits again."""
        excess = self.excess
        found: list[Candidate] = []
        idle = [one for one in self._here(self._candidates.idle()) if not one.is_hot]
        for candidate in self._in_order(idle, wanted_by):
            if excess <= 0:
                break
            excess -= self._size(candidate)
            found.append(candidate)
        return found

    def _evictable(
        self, need: Need, wanted_by: Collection[str], *, is_patient: bool
    ) -> list[Candidate]:
        """Who may be evicted for a claim, in order."""
        idle = self._here(self._candidates.idle())
        if self.is_lent(need):
            # Neither does it take back at once what was just taken back from it.
            before = self._clock() - LENT_IDLE_S
            own = need.account
            return self._in_order(
                (
                    one
                    for one in idle
                    if not one.is_hot and (self._account(one) == own or one.since <= before)
                ),
                wanted_by,
            )
        found = self._in_order((one for one in idle if not one.is_hot), wanted_by)
        found += self._lent_to_others(need, [one for one in idle if one.is_hot], wanted_by)
        if is_patient:
            found += self._in_order(self._here(self._candidates.working()), wanted_by)
        return found

    def _lent_to_others(
        self, need: Need, hot: list[Candidate], wanted_by: Collection[str]
    ) -> list[Candidate]:
        """Those of idle `hot` replicas whose memory is lent, and due to the account that waits."""
        has = self.by_account().get(need.account, 0)
        if has + need.size > self._fair_share(wanted_by):
            return []
        lent = {account: held - self._hot_share for account, held in self._hot_held().items()}
        found: list[Candidate] = []
        for candidate in self._in_order(hot, wanted_by):
            account = self._account(candidate)
            if account != need.account and lent.get(account, 0) > 0:
                lent[account] -= self._size(candidate)
                found.append(candidate)
        return found

    def _in_order(
        self, candidates: Iterable[Candidate], wanted_by: Collection[str]
    ) -> list[Candidate]:
        """In the order in which they are evicted."""
        left = sorted(candidates, key=_eviction_order)
        has = self.by_account()
        if len(has) < 2:
            return left
        fair, found = self._fair_share(wanted_by), list[Candidate]()
        while left:
            # Of those above their share by as much, it is the first by the order above.
            chosen = max(left, key=lambda one: max(0, has.get(self._account(one), 0) - fair))
            left.remove(chosen)
            found.append(chosen)
            account = self._account(chosen)
            has[account] = has.get(account, 0) - self._size(chosen)
        return found

    def _fair_share(self, wanted_by: Collection[str]) -> int:
        """What each account would have if all that want memory now had as much."""
        accounts = {claim.account for claim in self._claims.values()}
        accounts |= set(wanted_by) | set(self._owners.values())
        return self.total // max(1, len(accounts))

    def _here(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those whose ends would free something of this book."""
        return [one for one in candidates if self._size(one)]

    def _size(self, candidate: Candidate) -> int:
        claim = self._claims.get(candidate.replica_id)
        return claim.size if claim and not claim.is_ending else 0

    def _account(self, candidate: Candidate) -> str:
        claim = self._claims.get(candidate.replica_id)
        return claim.account if claim else ""

    def _hot_held(self) -> dict[str, int]:
        """What replicas of `hot` deployments hold, by account."""
        held: dict[str, int] = {}
        for claim in self._claims.values():
            if not claim.is_ending and claim.deployment_id in self._reserved:
                held[claim.account] = held.get(claim.account, 0) + claim.size
        return held

    def _reserved_by_account(self, beside: str) -> dict[str, int]:
        """What is reserved, one deployment's left out."""
        found: dict[str, int] = {}
        for deployment_id, size in self._reserved.items():
            if deployment_id != beside:
                account = self._owners[deployment_id]
                found[account] = found.get(account, 0) + size
        return found

    def _held_by(self, deployment_id: str) -> int:
        return sum(
            claim.size for claim in self._claims.values() if claim.deployment_id == deployment_id
        )

    def _kept_from(self, deployment_id: str, account: str) -> int:
        """What others hold, and what is kept for them: of other accounts, no more than a share."""
        taken: dict[str, int] = {}
        for claim in self._claims.values():
            taken[claim.deployment_id] = taken.get(claim.deployment_id, 0) + claim.size
        taken.pop(deployment_id, None)
        loaded: dict[str, int] = {}
        free: dict[str, int] = {}
        for other, reserved in self._reserved.items():
            if other != deployment_id:
                owner, held = self._owners[other], taken.get(other, 0)
                loaded[owner] = loaded.get(owner, 0) + held
                free[owner] = free.get(owner, 0) + max(0, reserved - held)
        kept = sum(taken.values()) + free.pop(account, 0)
        for owner, size in free.items():
            kept += min(size, max(0, self._hot_share - loaded[owner]))
        return kept


def _eviction_order(candidate: Candidate) -> tuple[bool, float]:
    return candidate.is_warm, candidate.since
