"""Chooses the replicas to evict from one memory budget."""

import time
from collections.abc import Callable, Collection, Iterable

from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.candidates import Candidates, EvictionCandidate
from stoker.runtime.local.memory.claims import Need

LENT_IDLE_S = 30.0
"""Seconds without a request before replicas of others are evicted for a hot replica on lent
memory.
"""


class Evictions:
    def __init__(
        self, book: Budget, candidates: Candidates, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._book = book
        self._candidates = candidates
        self._clock = clock

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

    def surplus(self, wanted_by: Collection[str]) -> list[EvictionCandidate]:
        """Returns the idle replicas to evict until the rest fits again."""
        excess = self._book.excess
        victims: list[EvictionCandidate] = []
        idle = [replica for replica in self._here(self._candidates.idle()) if not replica.is_hot]
        for candidate in self._in_order(idle, wanted_by):
            if excess <= 0:
                break
            excess -= self._size(candidate)
            victims.append(candidate)
        return victims

    def prepared(self) -> list[EvictionCandidate]:
        """Returns the prepared workers that hold memory here."""
        return [each for each in self._here(self._candidates.idle()) if each.is_prepared]

    def _evictable(
        self, need: Need, wanted_by: Collection[str], *, is_patient: bool
    ) -> list[EvictionCandidate]:
        """Returns the replicas that may be evicted for a claim, in order."""
        idle = self._here(self._candidates.idle())
        if self._book.is_lent(need):
            # A claim on lent memory does not immediately take back memory that was just reclaimed
            # from it.
            before = self._clock() - LENT_IDLE_S
            account = need.account
            return self._in_order(
                (
                    candidate
                    for candidate in idle
                    if not candidate.is_hot
                    and (
                        candidate.is_prepared
                        or self._account(candidate) == account
                        or candidate.since <= before
                    )
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
        book = self._book
        has = book.by_account().get(need.account, 0)
        if has + need.size > book.fair_share(wanted_by):
            return []
        lent = {account: size - book.hot_share for account, size in book.hot_held().items()}
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
        """Sorts candidates by the order of eviction. Prepared workers come first."""
        in_order = sorted(candidates, key=_eviction_order)
        has = self._book.by_account()
        if len(has) < 2:
            return in_order
        ordered = [candidate for candidate in in_order if candidate.is_prepared]
        remaining = in_order[len(ordered) :]
        fair = self._book.fair_share(wanted_by)
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

    def _here(self, candidates: Iterable[EvictionCandidate]) -> list[EvictionCandidate]:
        """Returns the candidates that hold memory of this budget."""
        return [candidate for candidate in candidates if self._size(candidate)]

    def _size(self, candidate: EvictionCandidate) -> int:
        return self._book.staying_size(candidate.replica_id)

    def _account(self, candidate: EvictionCandidate) -> str:
        return self._book.account(candidate.replica_id)


def _eviction_order(candidate: EvictionCandidate) -> tuple[bool, bool, float, float]:
    return (
        not candidate.is_prepared,
        candidate.is_warm,
        candidate.call_rate,
        candidate.since,
    )
