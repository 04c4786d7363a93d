"""Shares a limited number of places between accounts, so that no account occupies all of them."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

GREED = 7
"""Maximum ratio between an account's places and the free places.

Of eight places, an account may use seven, so that another account's first job starts immediately.
Each account's share shrinks as more accounts work. With fewer places, one stays free as well. A
single place may be used.
"""
MOST_OVERTAKING = 4
"""Maximum number of turns in a row that calls of priority have before a waiting default call."""
_REMEMBERED = 1000

Item = TypeVar("Item")


class Tier(StrEnum):
    """Service tier of a call."""

    FLEX = "flex"
    """Background work. Runs when no other call waits, and keeps no model loaded."""
    DEFAULT = "default"
    PRIORITY = "priority"
    """Runs before calls of other tiers."""

    @property
    def is_background(self) -> bool:
        return self is Tier.FLEX


class TierTurns:
    """Chooses the tier with the next turn: priority before default, and flex only if no other tier
    waits.
    """

    def __init__(self) -> None:
        self._overtook = 0
        """Turns of priority in a row while default waited."""

    def next(self, waiting: Collection[Tier]) -> Tier:
        """Returns the tier that goes next. `waiting` must not be empty.

        After `MOST_OVERTAKING` turns of priority in a row, a waiting default call has a turn.
        """
        if Tier.PRIORITY in waiting:
            is_overtaking = Tier.DEFAULT in waiting
            if not (is_overtaking and self._overtook >= MOST_OVERTAKING):
                self._overtook = self._overtook + 1 if is_overtaking else 0
                return Tier.PRIORITY
        self._overtook = 0
        return Tier.DEFAULT if Tier.DEFAULT in waiting else Tier.FLEX


@dataclass(frozen=True)
class Party:
    """Caller on behalf of which work is done."""

    account: str = ""
    key: str = ""
    """Public id of the key that sent the request."""
    is_copy: bool = False
    """True for a copy of a call that was already answered. See `Served.is_copy`."""
    tier: Tier = Tier.DEFAULT


CURRENT_CALLER: ContextVar[Party] = ContextVar("party", default=Party())  # noqa: B039 — it is frozen
"""Caller of the current task. Code that shares resources reads it here, below libraries that do not
know accounts.
"""


class FairShare:
    """Assigns the next place to the account with the fewest places in use. A tie goes to the
    account that has waited longest since its last turn.
    """

    def __init__(self, places: int, greed: int = GREED) -> None:
        self._places = places
        self._greed = greed
        self._numbers = itertools.count(1)
        self._last: dict[str, int] = {}
        """Maps accounts that wait or work to the number of their last turn."""

    def may_begin(self, account: str, at_work: Mapping[str, int]) -> bool:
        """True if an account may use one more place.

        Args:
            at_work: number of places that each account uses.
        """
        free = self._places - sum(at_work.values())
        most = min(self._greed * free, max(1, self._places - 1))
        return at_work.get(account, 0) < most

    def next(self, at_work: Mapping[str, int], waiting: Collection[str]) -> str | None:
        """Returns the waiting account that has the next turn. None if no account may start now."""
        may = [name for name in waiting if self.may_begin(name, at_work)]
        if not may:
            return None
        known = {*waiting, *at_work}
        self._last = {name: turn for name, turn in self._last.items() if name in known}
        chosen = min(may, key=lambda name: (at_work.get(name, 0), self._last.get(name, 0)))
        self._last[chosen] = next(self._numbers)
        return chosen

    def allot(self, at_work: Mapping[str, int], waiting: Collection[str]) -> dict[str, int]:
        """Returns the number of places that each waiting account may use now."""
        counts, allotted = Counter(at_work), Counter[str]()
        while (chosen := self.next(counts, waiting)) is not None:
            counts[chosen] += 1
            allotted[chosen] += 1
        return dict(allotted)


class FairSemaphore:
    """A semaphore with places that are shared fairly between accounts."""

    def __init__(self, places: int, greed: int = GREED) -> None:
        self._turns = FairShare(places, greed)
        self._taken = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, account: str) -> AsyncGenerator[None]:
        await self.acquire(account)
        try:
            yield
        finally:
            self.release(account)

    async def acquire(self, account: str) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append(granted)
        self._settle()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # The place was granted and the caller cancelled at the same time.
                self.release(account)
            else:
                self._forget(account, granted)
            raise

    def release(self, account: str) -> None:
        self._taken[account] -= 1
        if not self._taken[account]:
            del self._taken[account]
        self._settle()

    def _settle(self) -> None:
        while (account := self._turns.next(self._taken, self._waiting)) is not None:
            granted = self._waiting[account][0]
            self._forget(account, granted)
            if not granted.done():
                self._taken[account] += 1
                granted.set_result(None)

    def _forget(self, account: str, granted: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(account)
        if waiting and granted in waiting:
            waiting.remove(granted)
            if not waiting:
                del self._waiting[account]


class FairQueue(Generic[Item]):
    """A bounded queue with places and turns that accounts share fairly.

    A full queue drops the newest item of the account with the most items, if that account has at
    least two more than the account of the new item. Otherwise it drops the new item.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._turns = FairShare(1)
        self._waiting: dict[str, deque[Item]] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def put(self, account: str, item: Item) -> Item | None:
        """Adds an item and returns the item that was dropped for it, which may be itself."""
        dropped: Item | None = None
        if len(self) >= self._places:
            largest = max(self._waiting, key=lambda name: len(self._waiting[name]))
            if len(self._waiting[largest]) < len(self._waiting.get(account, ())) + 2:
                return item
            dropped = self._waiting[largest].pop()
        self._waiting.setdefault(account, deque()).append(item)
        self._filled.set()
        return dropped

    async def get(self) -> Item:
        """Waits for an item and removes it: the oldest of the account that waited longest."""
        while (account := self._turns.next({}, self._waiting)) is None:
            self._filled.clear()
            await self._filled.wait()
        items = self._waiting[account]
        item = items.popleft()
        if not items:
            del self._waiting[account]
        return item


class RoundRobin:
    """Numbers turns so that parties take them in rotation, regardless of how much each has
    waiting.
    """

    def __init__(self) -> None:
        self.current = 0
        """Turn of the item that was accepted last."""
        self._next: dict[str, int] = {}
        """Maps each party with waiting items to its next turn."""

    def turn_of(self, party: str) -> int:
        """Returns and reserves the next turn of a party."""
        if len(self._next) >= _REMEMBERED:
            self._next = {name: turn for name, turn in self._next.items() if turn > self.current}
        turn = max(self.current + 1, self._next.get(party, 0))
        self._next[party] = turn + 1
        return turn
