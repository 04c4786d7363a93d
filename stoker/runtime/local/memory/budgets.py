"""All books of this machine, and where of them a claim is served: which devices, who has to go."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from stoker.base.errors import CapacityError
from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.candidates import Candidate, Candidates
from stoker.runtime.local.memory.devices import Device
from stoker.runtime.local.memory.waiting import Asked, Line, Waiter

WantedBy = Callable[[Budget], Collection[str]]
"""The accounts that wait for something of a book."""


class Plan(NamedTuple):
    books: list[Budget]
    """That a claim waits for."""
    victims: list[Candidate]
    """Whose ends give it what it lacks of them; none, where that is out of reach."""


class Budgets:
    def __init__(
        self,
        total: int,
        candidates: Candidates,
        clock: Callable[[], float] = time.monotonic,
        *,
        hot_share: float,
        devices: Sequence[Device],
        device_share: float,
    ) -> None:
        """
        Args:
            total: the budget of the machine's memory, bytes.
            hot_share: the part of each budget that one account may keep `hot` beside others.
            device_share: the part of each device's memory that replicas may take.
        """
        self._device_totals = [int(device.total_bytes * device_share) for device in devices]
        self.main = Budget("memory", total, candidates, clock, hot_share=hot_share)
        self.devices = [
            Budget(
                f"the memory of GPU {device.index}",
                budget,
                candidates,
                clock,
                hot_share=hot_share,
                device=device,
            )
            for device, budget in zip(devices, self._device_totals, strict=True)
        ]
        self.all = [self.main, *self.devices]

    def found(self, devices: Sequence[Device]) -> bool:
        """The devices that are there now, of those that were there at the start: nothing is given
        out of one that is gone. Whether that has changed."""
        there = {device.uuid for device in devices}
        before = [book.total for book in self.devices]
        for book, budget in zip(self.devices, self._device_totals, strict=True):
            book.total = budget if book.device and book.device.uuid in there else 0
        return before != [book.total for book in self.devices]

    # --- what can be had ---

    def eligible(self, asked: Asked) -> list[Budget]:
        """The devices that would do, of those that are there."""
        if asked.wanted is None:
            return []
        index = asked.wanted.index
        return [
            book
            for book in self.devices
            if book.total and book.device and index in (None, book.device.index)
        ]

    def possible(self, asked: Asked) -> Asked:
        """What a claim is to have: nothing of the devices, where it can never fit and need not.

        Raises `CapacityError` where it can never fit.
        """
        self.main.check(asked.need)
        wanted = asked.wanted
        if wanted is None or not self.devices:
            return Asked(asked.need)
        places, refused = self.eligible(asked), list[CapacityError]()
        for book in sorted(places, key=asked.room):
            try:
                book.check(asked.of(book))
            except CapacityError as error:
                refused.append(error)
        if len(places) - len(refused) >= wanted.count:
            return asked
        if wanted.is_optional:
            return Asked(asked.need)
        if refused:
            # Of the one with most room.
            raise refused[-1]
        which = "a GPU" if wanted.count == 1 else f"{wanted.count} GPUs"
        if wanted.index is not None:
            which = f"GPU {wanted.index}"
        raise CapacityError(
            f"The model wants {which}, and this machine has {_counted(self.devices)}.",
            code="insufficient_memory",
            retry_after_s=60,
        )

    def places(self, asked: Asked, line: Line) -> list[Budget] | None:
        """The devices that a claim can have now, beside its memory; None: it has to wait."""
        if line.lacks(asked, self.main) > 0:
            return None
        if asked.wanted is None:
            return []
        places = [book for book in self.eligible(asked) if line.lacks(asked, book) <= 0]
        places.sort(key=lambda book: (_is_elsewhere(asked, book), -asked.room(book)))
        count = asked.wanted.count
        return places[:count] if len(places) >= count else None

    def is_vain(self, asked: Asked, line: Line) -> bool:
        """Whether somebody stands before a claim for all that it may have."""
        return line.is_short(self.main) and all(line.is_short(one) for one in self.eligible(asked))

    def plan(self, waiter: Waiter, line: Line, wanted_by: WantedBy) -> Plan:
        """How a claim comes to what it lacks: with as few evictions as can be, on the devices where
        it takes least."""
        asked = waiter.asked
        options: list[tuple[tuple[bool, int, int], Budget, list[Candidate]]] = []
        for book in self.eligible(asked):
            victims = _victims(waiter, book, line, wanted_by)
            if victims is not None:
                cost = sum(book.size(one.replica_id) for one in victims)
                rank = (_is_elsewhere(asked, book), cost, -asked.room(book))
                options.append((rank, book, victims))
        count = asked.wanted.count if asked.wanted else 0
        if len(options) < count:
            return Plan([self.main, *self.eligible(asked)], [])
        chosen = sorted(options, key=lambda one: one[0])[:count]
        gone = {one.replica_id: one for *_, victims in chosen for one in victims}
        freed = sum(self.main.size(replica_id) for replica_id in gone)
        more = _victims(waiter, self.main, line, wanted_by, freed=freed, beside=gone)
        books = [self.main, *(book for _, book, _ in chosen)]
        return Plan(books, [] if more is None else [*gone.values(), *more])

    def is_lent(self, asked: Asked) -> bool:
        """Whether a claim is for what an account keeps hot beyond its share."""
        of_devices = [book.is_lent(asked.of(book)) for book in self.eligible(asked)]
        return self.main.is_lent(asked.need) or (bool(of_devices) and all(of_devices))

    def shortage(self, asked: Asked) -> str:
        """Why a claim waits, in words."""
        places = self.eligible(asked)
        if places and asked.need.size <= asked.room(self.main):
            book = max(places, key=asked.room)
            return book.shortage(asked.of(book))
        return self.main.shortage(asked.need)

    # --- what is kept ---

    def kept(self, asked: Asked, replicas: int) -> dict[Budget, int]:
        """Where memory of devices is kept for so many replicas of a deployment: where it is
        already, else where most is not kept for others."""
        kept: dict[Budget, int] = {}
        own = asked.need.deployment_id
        if asked.wanted is None:
            return kept
        for _ in range(replicas):

            def rank(book: Budget) -> tuple[bool, int]:
                need, taken = asked.of(book).size, kept.get(book, 0)
                reserved = book.reserved_for(own)
                return reserved < taken + need, taken - (book.total - book.reserved + reserved)

            for book in sorted(self.eligible(asked), key=rank)[: asked.wanted.count]:
                kept[book] = kept.get(book, 0) + asked.of(book).size
        return kept

    # --- who holds what ---

    def shares(self) -> "Shares":
        return Shares(self)


class Shares:
    """What accounts hold, as the part that they have of what they hold most of."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._main = budgets.main.by_account(with_ending=True)
        self._devices: dict[str, int] = {}
        for book in budgets.devices:
            for account, size in book.by_account(with_ending=True).items():
                self._devices[account] = self._devices.get(account, 0) + size
        self._most = max(1, sum(book.total for book in budgets.devices))

    def of(self, account: str) -> float:
        return max(
            self._main.get(account, 0) / max(1, self._budgets.main.total),
            self._devices.get(account, 0) / self._most,
        )

    def add(self, asked: Asked) -> None:
        """As if it had what it asks for."""
        account = asked.need.account
        self._main[account] = self._main.get(account, 0) + asked.need.size
        if asked.wanted:
            sizes = sorted(asked.of(book).size for book in self._budgets.eligible(asked))
            more = sum(sizes[: asked.wanted.count])
            self._devices[account] = self._devices.get(account, 0) + more


def _victims(
    waiter: Waiter,
    book: Budget,
    line: Line,
    wanted_by: WantedBy,
    *,
    freed: int = 0,
    beside: Collection[str] = (),
) -> list[Candidate] | None:
    """Who has to go for a claim in a book; None: it cannot be had there now.

    Args:
        freed: what becomes free by those who go already, `beside`.
    """
    lacks = line.lacks(waiter.asked, book)
    if lacks <= 0:
        return []
    if line.is_short(book):
        return None
    return book.victims(
        waiter.asked.of(book),
        lacks - book.leaving - freed,
        wanted_by=wanted_by(book),
        is_patient=line.is_patient(waiter),
        beside=beside,
    )


def _is_elsewhere(asked: Asked, book: Budget) -> bool:
    """Whether a book keeps nothing for one more replica of the deployment."""
    return book.unclaimed(asked.need.deployment_id) < asked.of(book).size


def _counted(devices: Sequence[Budget]) -> str:
    there = [str(book.device.index) for book in devices if book.total and book.device]
    return f"GPU {', '.join(there)}" if there else "none now"
