"""A thread that works through a queue."""

import queue
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from stoker.models.engines.openmp import keep_to_one_core
from stoker.replica.counters import Counters
from stoker.replica.named_thread import NamedThread

Item = TypeVar("Item")


class _Put(NamedTuple, Generic[Item]):
    item: Item
    party: str | None
    is_last: bool


class Lanes(Generic[Item]):
    """What waits: first what is nobody's, then one of each party's in rotation, then the last."""

    def __init__(self) -> None:
        self._first: deque[Item] = deque()
        self._parties: dict[str, deque[Item]] = {}
        """In the order of their turns."""
        self._last: deque[Item] = deque()

    def __bool__(self) -> bool:
        return bool(self._first or self._parties or self._last)

    def add(self, item: Item, party: str | None = None, *, is_last: bool = False) -> None:
        if is_last:
            self._last.append(item)
        elif party is None:
            self._first.append(item)
        else:
            self._parties.setdefault(party, deque()).append(item)

    def next(self) -> Item:
        """Of at least one."""
        if self._first:
            return self._first.popleft()
        if not self._parties:
            return self._last.popleft()
        party = next(iter(self._parties))
        waiting = self._parties.pop(party)
        item = waiting.popleft()
        if waiting:
            self._parties[party] = waiting
        return item


class QueueThread(Generic[Item]):
    """Handles what is put, one at a time. What the handler raises ends the thread."""

    def __init__(self, name: str, handle: Callable[[Item], None], counters: Counters) -> None:
        self._handle = handle
        self._queue: queue.SimpleQueue[_Put[Item] | None] = queue.SimpleQueue()
        self._lanes: Lanes[Item] = Lanes()
        """The thread's own."""
        self._is_ending = False
        self._pulse = counters.pulse(lambda: bool(self._lanes) or not self._queue.empty())
        self._thread = NamedThread(name, self._run)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Item, party: str | None = None, *, is_last: bool = False) -> None:
        """From any thread.

        Args:
            party: whose it is: parties take turns. None: it is handled before theirs, in order.
            is_last: it is handled when nothing else is there.
        """
        self._queue.put(_Put(item, party, is_last))

    def finish(self) -> None:
        """Handle what was put until now, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        keep_to_one_core()
        while True:
            self._take_in()
            if not self._lanes:
                return
            # Not `with`: a thread that its handler has ended is one that does not get on.
            self._pulse.is_working = True
            self._handle(self._lanes.next())
            self._pulse.stepped()
            self._pulse.is_working = False

    def _take_in(self) -> None:
        """Sort in what was put; waits for something where there is nothing to do."""
        while not self._queue.empty() or not (self._lanes or self._is_ending):
            put = self._queue.get()
            if put is None:
                self._is_ending = True
            else:
                self._lanes.add(put.item, put.party, is_last=put.is_last)
