"""Sharing out: places of which there are few, between accounts of which one may want all."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

GREED = 7
"""How many times as many places an account may take as it leaves free: of eight it takes seven, so
that another account's first job begins at once, and the more accounts work, the fewer each has. Of
fewer places it leaves one free, too; of a single place it takes that.
"""
_REMEMBERED = 1000

Item = TypeVar("Item")


@dataclass(frozen=True)
class Party:
    """Who something is done for."""

    account: str = ""
    key: str = ""
    """The public id of the key that asked for it."""
    is_copy: bool = False
    """Of a call that was answered already: see `Served.is_copy`."""


CURRENT_CALLER: ContextVar[Party] = ContextVar("party", default=Party())  # noqa: B039 — it is frozen
"""Of the task: what shares something out reads it here, below libraries that know no accounts."""


class FairShare:
    """The next place is for the account with the fewest at work; among equals, for the one that
    has got none for longest.
    """

    def __init__(self, places: int, greed: int = GREED) -> None:
        self._places = places
        self._greed = greed
        self._numbers = itertools.count(1)
        self._last: dict[str, int] = {}
        """Accounts that wait or work → the number of their last turn."""

    def may_begin(self, account: str, at_work: Mapping[str, int]) -> bool:
        """Whether an account may have one more.

        Args:
            at_work: how many places each account has.
        """
        free = self._places - sum(at_work.values())
        most = min(self._greed * free, max(1, self._places - 1))
        return at_work.get(account, 0) < most

    def next(self, at_work: Mapping[str, int], waiting: Collection[str]) -> str | None:
        """Whose turn it is, of the accounts that wait. None: nobody's now."""
        may = [name for name in waiting if self.may_begin(name, at_work)]
        if not may:
            return None
        kept = {*waiting, *at_work}
        self._last = {name: turn for name, turn in self._last.items() if name in kept}
        chosen = min(may, key=lambda name: (at_work.get(name, 0), self._last.get(name, 0)))
        self._last[chosen] = next(self._numbers)
        return chosen

    def allot(self, at_work: Mapping[str, int], waiting: Collection[str]) -> dict[str, int]:
        """How many each account that waits may have now."""
        counts, found = Counter(at_work), Counter[str]()
        while (chosen := self.next(counts, waiting)) is not None:
            counts[chosen] += 1
            found[chosen] += 1
        return dict(found)


class FairSemaphore:
    """A semaphore whose places are shared out by account."""

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
                # Granted and cancelled at once.
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
    """A bounded queue whose places and turns are shared between accounts.

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
    """Numbers turns so that parties take them in rotation, however many one of them has waiting."""

    def __init__(self) -> None:
        self.current = 0
        """The turn of what was taken last."""
        self._next: dict[str, int] = {}
        """Parties with something waiting → the first turn that is none of it."""

    def turn_of(self, party: str) -> int:
        """The next turn of a party."""
        if len(self._next) >= _REMEMBERED:
            self._next = {name: turn for name, turn in self._next.items() if turn > self.current}
        turn = max(self.current + 1, self._next.get(party, 0))
        self._next[party] = turn + 1
        return turn
