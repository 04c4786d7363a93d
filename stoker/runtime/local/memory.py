"""How much memory replicas may hold together, who gets it next and who is evicted.

Admission goes by bytes. Accounts that wait take turns: the next claim is that of the account that
holds least, and its own claims are first come, first served. Where there is no room, idle replicas
are evicted: of the account that is furthest above its fair share first; then of `cold` deployments
before `warm` ones, least recently used first. One that works is never killed for it; but where
claims have waited for `PATIENCE_S`, it is drained, so that it ends once it has finished, and the
deployments take turns.

An account may keep all memory `hot` while it is alone. What it keeps beyond its `hot_share` is
lent: it is taken back, once idle, for an account that has less than its fair share.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stoker.errors import CapacityError
from stoker.runtime.local.candidates import Candidate, Candidates
from stoker.runtime.pool.amounts import in_words

PATIENCE_S = 3.0
"""Seconds that a claim waits before replicas that work are drained for it."""


LENT_IDLE_S = 30.0
"""Seconds without a request after which others' replicas give way to a hot one on lent memory."""


@dataclass(eq=False)
class _Claim:
    deployment_id: str
    size: int
    account: str
    is_ending: bool = False


@dataclass(eq=False)
class _Waiter:
    replica_id: str
    deployment_id: str
    account: str
    need: int
    since: float
    granted: "asyncio.Future[None]"


class Memory:
    """A budget of bytes and the claims on it. All of it runs on the event loop."""

    def __init__(
        self,
        total: int,
        candidates: Candidates,
        clock: Callable[[], float] = time.monotonic,
        *,
        hot_share: float = 1.0,
    ) -> None:
        """
        Args:
            hot_share: the part of it that one account may keep `hot` beside others.
        """
        self.total = total
        self._hot_share = int(total * hot_share)
        self._candidates = candidates
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._reserved: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        """Deployments with reserved memory → their accounts."""
        self._waiters: list[_Waiter] = []
        self._got_at: dict[str, float] = {}
        """When accounts that wait were last given memory."""

    # --- who holds what ---

    @property
    def held(self) -> int:
        return sum(claim.size for claim in self._claims.values())

    @property
    def reserved(self) -> int:
        """What is kept for `hot` deployments, loaded or not, bytes."""
        return sum(self._reserved.values())

    def waiting(self) -> list[tuple[str, int, str]]:
        """The claims that wait, in turn: deployment, bytes, and why, in words."""
        return [
            (one.deployment_id, one.need, self.shortage(one.deployment_id, one.need, one.account))
            for one in self._in_turn()
        ]

    def size(self, replica_id: str) -> int:
        """What a replica has claimed, bytes; 0: nothing."""
        claim = self._claims.get(replica_id)
        return claim.size if claim else 0

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

    def room(self, deployment_id: str, account: str = "") -> int:
        """What a deployment could take now without an eviction, bytes; may be negative."""
        return self.total - self._kept_from(deployment_id, account) - self._held_by(deployment_id)

    def reserve(self, deployment_id: str, need: int, account: str = "") -> None:
        """Keep memory for a `hot` deployment, whether it is loaded or not."""
        self._reserved[deployment_id] = need
        self._owners[deployment_id] = account
        self.settle()

    def unreserve(self, deployment_id: str) -> None:
        self._owners.pop(deployment_id, None)
        if self._reserved.pop(deployment_id, None) is not None:
            self.settle()

    def check_hot(self, deployment_id: str, need: int, account: str, *, is_alone: bool) -> None:
        """Raises `CapacityError` where so much cannot be kept for a deployment of the account.

        Args:
            is_alone: no other account has deployments.
        """
        self.check(deployment_id, need, account)
        if is_alone or need <= self._reserved.get(deployment_id, 0):
            return
        kept = self._reserved_by_account(deployment_id).get(account, 0)
        if kept + need > self._hot_share:
            raise CapacityError(
                f"The model needs about {in_words(need)} of memory, which cannot be kept for it: "
                f"beside others, an account may keep {in_words(self._hot_share)} for its hot "
                f"deployments, and this one keeps {in_words(kept)}. Let it be warm.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def check(self, deployment_id: str, need: int, account: str = "") -> None:
        """Raises `CapacityError` where so much cannot fit beside what is reserved for others."""
        kept_for = self._reserved_by_account(deployment_id)
        reserved = kept_for.pop(account, 0)
        reserved += sum(min(size, self._hot_share) for size in kept_for.values())
        if need > self.total - reserved:
            kept = f", {in_words(reserved)} of it reserved for hot deployments" if reserved else ""
            raise CapacityError(
                f"The model needs about {in_words(need)} of memory and cannot fit: all models "
                f"together may take {in_words(self.total)}{kept}.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    # --- claims ---

    async def claim(
        self, replica_id: str, deployment_id: str, need: int, account: str = ""
    ) -> None:
        """Wait until a replica may take `need` bytes, evicting others for it.

        Raises `CapacityError` where it can never fit.
        """
        self.check(deployment_id, need, account)
        waiter = _Waiter(
            replica_id,
            deployment_id,
            account,
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

    def take(self, replica_id: str, deployment_id: str, need: int, account: str = "") -> bool:
        """Claim what is free without passing a claim that waits; False where that is too little.

        Raises `CapacityError` where it can never fit.
        """
        self.check(deployment_id, need, account)
        if self._waiters or need > self.room(deployment_id, account):
            return False
        self._claims[replica_id] = _Claim(deployment_id, need, account)
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

    def shortage(self, deployment_id: str, need: int, account: str = "") -> str:
        """Why a deployment's claim waits, in words."""
        room = max(0, self.room(deployment_id, account))
        return (
            f"The model needs about {in_words(need)} of memory and {in_words(room)} of "
            f"{in_words(self.total)} are free: the rest is held by models that are busy."
        )

    def settle(self) -> None:
        """Grant what fits, and make room for the one whose turn it is."""
        self._evict_excess()
        first: _Waiter | None = None
        for waiter in self._in_turn():
            if waiter.granted.done():
                continue
            if waiter.need <= self.room(waiter.deployment_id, waiter.account):
                # Others may go before the first one, but not for ever.
                if first is None or self._clock() - first.since < PATIENCE_S:
                    self._grant(waiter)
            elif first is None:
                # Who waits for what was lent holds nobody up.
                first = None if self._is_lent(waiter) else waiter
                self._make_room(waiter)

    def _in_turn(self) -> list[_Waiter]:
        """Those who wait: the next is of the account that holds least, with what it got before."""
        if len({waiter.account for waiter in self._waiters}) < 2:
            return sorted(self._waiters, key=self._is_lent)
        has = self._held_by_account(with_ending=True)
        ranked: list[tuple[bool, int, float, _Waiter]] = []
        for waiter in self._waiters:
            account = waiter.account
            # Of those that hold as much, the one that has got nothing for longer.
            got_at = self._got_at.get(account, -math.inf)
            ranked.append((self._is_lent(waiter), has.get(account, 0), got_at, waiter))
            has[account] = has.get(account, 0) + waiter.need
        return [waiter for *_, waiter in sorted(ranked, key=lambda one: one[:3])]

    def _grant(self, waiter: _Waiter) -> None:
        claim = _Claim(waiter.deployment_id, waiter.need, waiter.account)
        self._claims[waiter.replica_id] = claim
        self._got_at[waiter.account] = self._clock()
        self._waiters.remove(waiter)
        waiter.granted.set_result(None)

    def _make_room(self, waiter: _Waiter) -> None:
        room = self.room(waiter.deployment_id, waiter.account)
        missing = waiter.need - room - self._ending()
        if missing <= 0:
            return
        candidates = self._evictable(waiter)
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
        if excess <= 0:
            return
        idle = [one for one in self._candidates.idle() if not one.is_hot]
        for candidate in self._in_order(idle):
            if excess <= 0:
                return
            excess -= self._size(candidate)
            self._evict(candidate)

    def _evictable(self, waiter: _Waiter) -> list[Candidate]:
        """Who may be evicted for a claim, in order."""
        idle = list(self._candidates.idle())
        if self._is_lent(waiter):
            # Neither does it take back at once what was just taken back from it.
            before = self._clock() - LENT_IDLE_S
            own = waiter.account
            return self._in_order(
                one
                for one in idle
                if not one.is_hot and (self._account(one) == own or one.since <= before)
            )
        found = self._in_order(one for one in idle if not one.is_hot)
        found += self._lent_to_others(waiter, [one for one in idle if one.is_hot])
        if self._clock() - waiter.since >= PATIENCE_S:
            found += self._in_order(self._candidates.working())
        return found

    def _lent_to_others(self, waiter: _Waiter, hot: list[Candidate]) -> list[Candidate]:
        """Those of idle `hot` replicas whose memory is lent, and due to the account that waits."""
        has = self._held_by_account().get(waiter.account, 0)
        if has + waiter.need > self._fair_share():
            return []
        lent = {account: held - self._hot_share for account, held in self._hot_held().items()}
        found: list[Candidate] = []
        for candidate in self._in_order(hot):
            account = self._account(candidate)
            if account != waiter.account and lent.get(account, 0) > 0:
                lent[account] -= self._size(candidate)
                found.append(candidate)
        return found

    def _is_lent(self, waiter: _Waiter) -> bool:
        """Whether a claim is for what an account keeps hot beyond its share."""
        if waiter.deployment_id not in self._reserved:
            return False
        return self._hot_held().get(waiter.account, 0) + waiter.need > self._hot_share

    def _in_order(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """In the order in which they are evicted."""
        left = sorted(candidates, key=_eviction_order)
        has = self._held_by_account()
        if len(has) < 2:
            return left
        fair, found = self._fair_share(), list[Candidate]()
        while left:
            # Of those above their share by as much, it is the first by the order above.
            chosen = max(left, key=lambda one: max(0, has.get(self._account(one), 0) - fair))
            left.remove(chosen)
            found.append(chosen)
            account = self._account(chosen)
            has[account] = has.get(account, 0) - self._size(chosen)
        return found

    def _fair_share(self) -> int:
        """What each account would have if all that want memory now had as much."""
        accounts = {claim.account for claim in self._claims.values()}
        accounts |= {waiter.account for waiter in self._waiters} | set(self._owners.values())
        return self.total // max(1, len(accounts))

    def _evict(self, candidate: Candidate) -> None:
        self.ending(candidate.replica_id)
        self._candidates.evict(candidate.replica_id)

    def _size(self, candidate: Candidate) -> int:
        claim = self._claims.get(candidate.replica_id)
        return claim.size if claim and not claim.is_ending else 0

    def _account(self, candidate: Candidate) -> str:
        claim = self._claims.get(candidate.replica_id)
        return claim.account if claim else ""

    def _held_by_account(self, *, with_ending: bool = False) -> dict[str, int]:
        held: dict[str, int] = {}
        for claim in self._claims.values():
            if with_ending or not claim.is_ending:
                held[claim.account] = held.get(claim.account, 0) + claim.size
        return held

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

    def _ending(self) -> int:
        return sum(claim.size for claim in self._claims.values() if claim.is_ending)

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
