"""A thread that works through a queue."""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from stoker.base.fairness import Tier, TierTurns
from stoker.models.engines.openmp import keep_to_one_core
from stoker.replica.counters import Counters
from stoker.replica.named_thread import NamedThread

Item = TypeVar("Item")


class _Put(NamedTuple, Generic[Item]):
    item: Item
    party: str | None
    tier: Tier
    is_last: bool


class Lanes(Generic[Item]):
    """Waiting items: first items without a party, then one item per party in rotation, tier by
    tier, then last items.
    """

    def __init__(self) -> None:
        self._first: deque[Item] = deque()
        self._tiers: dict[Tier, dict[str, deque[Item]]] = {}
        """Items by tier and party, in the order of the parties' turns."""
        self._turns = TierTurns()
        self._last: deque[Item] = deque()

    def __bool__(self) -> bool:
        return bool(self._first or self._tiers or self._last)

    @property
    def has_live(self) -> bool:
        """True if an item waits that is not background work."""
        return any(not tier.is_background for tier in self._tiers)

    def add(
        self,
        item: Item,
        party: str | None = None,
        tier: Tier = Tier.DEFAULT,
        *,
        is_last: bool = False,
    ) -> None:
        if is_last:
            self._last.append(item)
        elif party is None:
            self._first.append(item)
        else:
            parties = self._tiers.setdefault(tier, {})
            parties.setdefault(party, deque()).append(item)

    def next(self) -> Item:
        """Removes and returns the next item. At least one must wait."""
        if self._first:
            return self._first.popleft()
        if not self._tiers:
            return self._last.popleft()
        tier = self._turns.next(self._tiers)
        parties = self._tiers[tier]
        party = next(iter(parties))
        waiting = parties.pop(party)
        item = waiting.popleft()
        if waiting:
            parties[party] = waiting
        elif not parties:
            del self._tiers[tier]
        return item


class QueueThread(Generic[Item]):
    """Handles queued items, one at a time. An error of the handler ends the thread.

    Another thread may handle an item itself while this one has none, which saves waking it.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Item], None],
        counters: Counters,
        *,
        before_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            before_waiting: called on the thread whenever no item is left.
        """
        self._handle = handle
        self._before_waiting = before_waiting
        self._queue: queue.SimpleQueue[_Put[Item] | None] = queue.SimpleQueue()
        self._lanes: Lanes[Item] = Lanes()
        """Lanes that only this thread uses."""
        self._is_ending = False
        self._handling = threading.Lock()
        """Held by the thread that handles an item."""
        self._pulse = counters.pulse(lambda: self.is_behind)
        self._thread = NamedThread(name, self._run)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """True if items wait."""
        return bool(self._lanes) or not self._queue.empty()

    def is_behind_for(self, tier: Tier) -> bool:
        """Returns True if items wait that are handled before background work, or any items if
        `tier` is background work.
        """
        if tier.is_background:
            return self.is_behind
        return self._lanes.has_live or not self._queue.empty()

    def put(
        self,
        item: Item,
        party: str | None = None,
        tier: Tier = Tier.DEFAULT,
        *,
        is_last: bool = False,
    ) -> None:
        """Queues an item. Callable from any thread.

        Args:
            party: owner of the item. Parties take turns. None: handled before all parties, in
                order.
            tier: tier of the party's call.
            is_last: handled when nothing else waits.
        """
        self._queue.put(_Put(item, party, tier, is_last))

    def handle_now(self, item: Item) -> bool:
        """Handles an item on the calling thread. Returns False, without handling it, if the queue's
        thread is busy.
        """
        if not self._handling.acquire(blocking=False):
            return False
        try:
            if self.is_behind:
                return False
            self._handle(item)
            return True
        finally:
            self._handling.release()

    def finish(self) -> None:
        """Handles the items queued until now, then ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        keep_to_one_core()
        while True:
            self._take_in()
            if not self._lanes:
                return
            # Not `with`: a thread that its handler ended must count as stalled.
            self._pulse.is_working = True
            with self._handling:
                self._handle(self._lanes.next())
            self._pulse.stepped()
            self._pulse.is_working = False

    def _take_in(self) -> None:
        """Sorts queued items into the lanes. Waits for an item if the lanes are empty."""
        while not self._queue.empty() or not (self._lanes or self._is_ending):
            if not self._lanes and self._queue.empty():
                self._before_waiting()
            put = self._queue.get()
            if put is None:
                self._is_ending = True
            else:
                self._lanes.add(put.item, put.party, put.tier, is_last=put.is_last)
