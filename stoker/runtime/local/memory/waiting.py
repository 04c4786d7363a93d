"""Claims that wait, and what is left for them by those behind them."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from stoker.runtime.local.memory.budget import Budget, Need
from stoker.runtime.local.memory.devices import Wanted

PATIENCE_S = 3.0
"""Seconds that a claim waits before replicas that work are drained for it."""


@dataclass(frozen=True)
class Asked:
    """What a replica needs of all books together."""

    need: Need
    """Of the machine's memory."""
    wanted: Wanted | None = None
    """Of the devices; None: nothing."""

    def of(self, book: Budget) -> Need:
        if book.device is None or self.wanted is None:
            return self.need
        size = self.wanted.of(book.device, book.total)
        return Need(self.need.deployment_id, size, self.need.account)

    def room(self, book: Budget) -> int:
        """What there is of a book for it, bytes; may be negative."""
        return book.room(self.need.deployment_id, self.need.account)


@dataclass(eq=False)
class Waiter:
    replica_id: str
    asked: Asked
    since: float
    granted: "asyncio.Future[None]"

    @property
    def account(self) -> str:
        return self.asked.need.account


class Line:
    """Who was passed over while claims are looked at in their turn.

    Those behind may go first where there is enough for them, but not for ever: from then on they
    leave, of each book, what the first who needs it needs, and the first who lacks something of it.
    So a claim that waits for a device keeps its memory from nobody else's turn, and its own.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self._kept: dict[Budget, int] = {}
        """Books that somebody waits for → what is left of them for those who have waited long."""
        self._short: set[Budget] = set()

    def is_patient(self, waiter: Waiter) -> bool:
        """Whether it has waited for so long that others are held up for it."""
        return self._now - waiter.since >= PATIENCE_S

    def lacks(self, asked: Asked, book: Budget) -> int:
        """How much more a claim would need of a book, bytes; 0 and less: there is enough."""
        return asked.of(book).size + self._kept.get(book, 0) - asked.room(book)

    def is_short(self, book: Budget) -> bool:
        """Whether somebody waits for this book already: nobody else is made room for in it."""
        return book in self._short

    def stand(self, waiter: Waiter, books: Collection[Budget]) -> None:
        """It waits for these."""
        short = {book for book in books if self.lacks(waiter.asked, book) > 0}
        for book in books:
            if book not in self._kept or book in short - self._short:
                kept = waiter.asked.of(book).size if self.is_patient(waiter) else 0
                self._kept[book] = self._kept.get(book, 0) + kept
        self._short |= short
