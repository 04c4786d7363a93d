"""Waiting claims, and the memory that later claims must leave for them."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace

from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.devices import DeviceNeed

PATIENCE_S = 3.0
"""Seconds that a claim waits before working replicas are drained for it."""


@dataclass(frozen=True)
class MemoryNeed:
    """Needs of one replica across all budgets."""

    need: Need
    """Need of the machine's memory."""
    wanted: DeviceNeed | None = None
    """Need of the devices. None means none."""

    def of(self, book: Budget) -> Need:
        if book.device is None or self.wanted is None:
            return self.need
        return replace(self.need, size=self.wanted.of(book.device, book.total))

    def room(self, book: Budget) -> int:
        """Returns the bytes of a budget that are available for the claim. May be negative.

        Includes the bytes of the prepared worker that the claim would replace.
        """
        worker_id = self.worker(book)
        replaced = book.size(worker_id) if worker_id else 0
        return book.room(self.need.deployment_id, self.need.account) + replaced

    def worker(self, book: Budget) -> str | None:
        """Returns the prepared worker of a device that the claim would replace."""
        if book.device is None or self.wanted is None or not self.wanted.takes_prepared:
            return None
        return next(iter(book.usable_workers), None)


@dataclass(eq=False)
class Waiter:
    replica_id: str
    asked: MemoryNeed
    since: float
    granted: "asyncio.Future[None]"

    @property
    def account(self) -> str:
        return self.asked.need.account


class Line:
    """Claims that were passed over while the queue is processed in order.

    Later claims may go first if enough is left for them, but only until the earlier claim has
    waited for `PATIENCE_S`. From then on they must leave enough for it. In each budget, that is the
    need of the first claim that waits for it and of the first that lacks some of it. So a claim
    that waits for a device does not take memory from the turn of others, and keeps its own turn.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._kept: dict[Budget, int] = {}
        """Maps each budget with waiting claims to the bytes that are left for the patient ones."""
        self._short: set[Budget] = set()

    def is_patient(self, waiter: Waiter) -> bool:
        """Returns True if the claim has waited so long that others are delayed for it."""
        return self._now - waiter.since >= PATIENCE_S

    def lacks(self, asked: MemoryNeed, book: Budget) -> int:
        """Returns the bytes of a budget that a claim lacks. 0 or less means that enough is
        available.
        """
        return asked.of(book).size + self._kept.get(book, 0) - asked.room(book)

    def is_short(self, book: Budget) -> bool:
        """Returns True if an earlier claim lacks memory of this budget. No replica is evicted for
        another claim on it.
        """
        return book in self._short

    def stand(self, waiter: Waiter, books: Collection[Budget]) -> None:
        """Registers a claim that waits for these budgets."""
        short = {book for book in books if self.lacks(waiter.asked, book) > 0}
        for book in books:
            if book not in self._kept or book in short - self._short:
                reserved_size = waiter.asked.of(book).size if self.is_patient(waiter) else 0
                self._kept[book] = self._kept.get(book, 0) + reserved_size
        self._short |= short
