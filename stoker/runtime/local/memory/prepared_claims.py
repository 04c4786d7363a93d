"""Claims of prepared workers, and the replicas that replace them."""

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.budgets import Budgets
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.waiting import MemoryNeed

_NAME = "prepared workers"
"""Stands for the deployment and the account of such claims. They are not billed."""


@dataclass(frozen=True)
class _Replaced:
    worker_id: str
    sizes: dict[Budget, int]
    """Claims that the worker had."""


class PreparedClaims:
    """Replaces a worker's claims with those of the replica that it becomes, in one step."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._replaced: dict[str, _Replaced] = {}
        """Maps a replica with a granted claim to the worker in which it will start."""

    def enter(self, worker_id: str, device: Budget, size: int, main_size: int) -> bool:
        """Claims free memory for a worker. Returns False if not enough is free."""
        sizes = {self._budgets.main: main_size, device: size}
        if not device.total or any(book.room(_NAME, _NAME) < each for book, each in sizes.items()):
            return False
        for book, each in sizes.items():
            book.enter(worker_id, Need(_NAME, each, _NAME, is_prepared=True))
        return True

    def mark_usable(self, worker_id: str, *, is_usable: bool) -> None:
        for book in self._budgets.devices:
            book.mark_usable(worker_id, is_usable=is_usable)

    def replace(self, replica_id: str, asked: MemoryNeed, places: Sequence[Budget]) -> None:
        """Removes the claims of the worker that a new claim replaces, if there is one."""
        worker_id = next((worker for book in places if (worker := asked.worker(book))), None)
        if worker_id is None:
            return
        sizes = {book: book.size(worker_id) for book in self._budgets.all if book.has(worker_id)}
        self._replaced[replica_id] = _Replaced(worker_id, sizes)
        for book in sizes:
            book.strike(worker_id)

    def worker(self, replica_id: str) -> str | None:
        """Returns the worker in which a replica will start. Its own claim no longer exists. None if
        the replica needs a new process.
        """
        replaced = self._replaced.get(replica_id)
        return replaced.worker_id if replaced else None

    def forget(self, replica_id: str) -> None:
        """Records that a replica runs in its worker."""
        self._replaced.pop(replica_id, None)

    def give_back(self, replica_id: str) -> bool:
        """Restores the claims of a worker that did not become the replica.

        Returns False if the replica was to start without one.
        """
        replaced = self._replaced.pop(replica_id, None)
        if replaced is None:
            return False
        for book, size in replaced.sizes.items():
            book.enter(replaced.worker_id, Need(_NAME, size, _NAME, is_prepared=True))
            book.mark_usable(replaced.worker_id, is_usable=True)
        return True

    def drop(self, worker_id: str) -> None:
        """Forgets a worker whose process has ended, also if a replica was to start in it."""
        for replica_id, replaced in [*self._replaced.items()]:
            if replaced.worker_id == worker_id:
                del self._replaced[replica_id]
