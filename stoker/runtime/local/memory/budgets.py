"""Memory budgets of the machine and its GPUs. Chooses devices and evictions for a claim."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.base.config import MIB
from stoker.base.device_budget import device_budget
from stoker.base.errors import CapacityError
from stoker.runtime.amounts import in_words
from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.candidates import Candidates, EvictionCandidate
from stoker.runtime.local.memory.devices import Device, DeviceNeed
from stoker.runtime.local.memory.evictions import Evictions
from stoker.runtime.local.memory.waiting import Line, MemoryNeed, Waiter

LEAST_OTHER_BYTES = 256 * MIB
"""Memory of other processes that is ignored. It fits into the share of a device that replicas may
not use.
"""
WantedBy = Callable[[Budget], Collection[str]]
"""Returns the accounts that wait for a budget."""


class EvictionPlan(NamedTuple):
    books: list[Budget]
    """Budgets that a claim waits for."""
    victims: list[EvictionCandidate]
    """Replicas to evict for the missing bytes. Empty if evictions are not enough."""


@dataclass(frozen=True)
class DeviceUse:
    """Real use of the devices by replicas, around one reading of the driver."""

    real: Mapping[str, int] = field(default_factory=dict[str, int])
    """Maps replicas to their bytes of each device. Other replicas count with their claims."""
    left: Mapping[str, int] = field(default_factory=dict[str, int])
    """Maps devices, by UUID, to the bytes that replicas released during the reading. The driver may
    have counted them.
    """


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
            total: the budget of the machine's memory in bytes.
            hot_share: the fraction of each budget that one account may keep `hot` next to others.
            device_share: the fraction of each device's memory that replicas may use.
        """
        self._device_share = device_share
        self.main = Budget("memory", total, candidates, hot_share=hot_share)
        self.devices = [
            Budget(
                f"the memory of GPU {device.index}",
                int(device.total_bytes * device_share),
                candidates,
                hot_share=hot_share,
                device=device,
            )
            for device in devices
        ]
        self.all = [self.main, *self.devices]
        self._evictions = {book: Evictions(book, candidates, clock) for book in self.all}

    def found(self, devices: Sequence[Device], use: DeviceUse) -> tuple[bool, bool]:
        """Updates which of the devices present at the start are still present, and how much of them
        other processes hold. Missing devices serve no claims.

        Returns whether the set of devices changed, and whether any budget changed.
        """
        present = {device.uuid: device for device in devices}
        before = [book.total for book in self.devices]
        for book in self.devices:
            if book.device:
                self._update(book, present.get(book.device.uuid), use)
        after = [book.total for book in self.devices]
        is_other_set = [bool(total) for total in before] != [bool(total) for total in after]
        return is_other_set, before != after

    def shows_loss(self, devices: Sequence[Device], use: DeviceUse) -> bool:
        """Returns True if a device has disappeared, or if other processes hold more of one."""
        present = {device.uuid: device for device in devices}
        for book in self.devices:
            if book.device is None or not book.total:
                continue
            device = present.get(book.device.uuid)
            if device is None:
                return True
            if _held_by_others(book, device, use) >= book.other_bytes + LEAST_OTHER_BYTES:
                return True
        return False

    def _update(self, book: Budget, device: Device | None, use: DeviceUse) -> None:
        book.used_bytes, book.other_bytes = (device.used_bytes if device else None), 0
        if device is None:
            book.total = 0
            return
        book.other_bytes = _held_by_others(book, device, use)
        budget = device_budget(device.total_bytes, book.other_bytes, self._device_share)
        # Present, but full of others: the device stays in the set.
        book.total = max(1, budget)

    # --- capacity ---

    def eligible(self, asked: MemoryNeed) -> list[Budget]:
        """Returns the present devices that a claim may use."""
        if asked.wanted is None:
            return []
        index, is_single = asked.wanted.index, asked.wanted.count == 1
        indices = asked.wanted.sizes or None
        return [
            book
            for book in self.devices
            if book.total
            and book.device
            and index in (None, book.device.index)
            and (indices is None or book.device.index in indices)
            and (is_single or not book.device.is_part)
        ]

    def possible(self, asked: MemoryNeed) -> MemoryNeed:
        """Returns the claim, without devices if they are optional and it can never fit on them.

        Raises `CapacityError` if it can never fit.
        """
        self.main.check(asked.need)
        error = self.refusal(asked)
        if error is None:
            return asked if self.devices else MemoryNeed(asked.need)
        if asked.wanted and asked.wanted.is_optional:
            return MemoryNeed(asked.need)
        raise error

    def refusal(self, asked: MemoryNeed) -> CapacityError | None:
        """Returns the error of a claim that can never fit on the devices. None if it can."""
        device_need = asked.wanted
        if device_need is None or not self.devices:
            return None
        places, refused = self.eligible(asked), list[CapacityError]()
        for book in sorted(places, key=asked.room):
            try:
                book.check(asked.of(book))
                _check_weights(device_need, book, asked.of(book).size)
            except CapacityError as error:
                refused.append(error)
        if len(places) - len(refused) >= device_need.count:
            return None
        if refused:
            advice = device_need.advice([asked.room(book) for book in places])
            return CapacityError(
                f"{refused[-1].message} {advice}".rstrip(),
                code="insufficient_memory",
                retry_after_s=60,
            )
        which = "a GPU" if device_need.count == 1 else f"{device_need.count} GPUs"
        if device_need.index is not None:
            which = f"GPU {device_need.index}"
        message = f"The model requires {which}, but this machine has {_counted(self.devices)}."
        if device_need.count > 1 and not device_need.sizes:
            parts = [book for book in self.devices if book.device and book.device.is_part]
            mig = " A model cannot be spread over MIG instances." if parts else ""
            message += f"{mig} Set 'devices' to {max(1, len(places))}."
        return CapacityError(message, code="insufficient_memory", retry_after_s=60)

    def places(self, asked: MemoryNeed, line: Line) -> list[Budget] | None:
        """Returns the devices that a claim can get now, in addition to its memory. None means that
        it has to wait.
        """
        if line.lacks(asked, self.main) > 0:
            return None
        if asked.wanted is None:
            return []
        places = [book for book in self.eligible(asked) if line.lacks(asked, book) <= 0]
        places.sort(
            key=lambda book: (
                _is_elsewhere(asked, book),
                asked.worker(book) is None,
                -asked.room(book),
            )
        )
        count = asked.wanted.count
        return places[:count] if len(places) >= count else None

    def is_vain(self, asked: MemoryNeed, line: Line) -> bool:
        """Returns True if earlier claims wait for every budget that a claim may use."""
        return line.is_short(self.main) and all(
            line.is_short(book) for book in self.eligible(asked)
        )

    def plan(self, waiter: Waiter, line: Line, wanted_by: WantedBy) -> EvictionPlan:
        """Plans how a claim gets its missing memory. Evicts as little as possible, on the devices
        that need the fewest bytes freed.
        """
        claim = waiter.asked
        options: list[tuple[tuple[bool, int, int], Budget, list[EvictionCandidate]]] = []
        for book in self.eligible(claim):
            # The memory of this worker is counted already, because the claim replaces it.
            replaced = [worker for worker in [claim.worker(book)] if worker]
            victims = self._victims(waiter, book, line, wanted_by, beside=replaced)
            if victims is not None:
                cost = sum(book.size(each.replica_id) for each in victims if not each.is_prepared)
                rank = (_is_elsewhere(claim, book), cost, -claim.room(book))
                options.append((rank, book, victims))
        count = claim.wanted.count if claim.wanted else 0
        if len(options) < count:
            return EvictionPlan([self.main, *self.eligible(claim)], [])
        chosen = sorted(options, key=lambda one: one[0])[:count]
        gone = {each.replica_id: each for *_, victims in chosen for each in victims}
        freed = sum(self.main.size(replica_id) for replica_id in gone)
        more = self._victims(waiter, self.main, line, wanted_by, freed=freed, beside=gone)
        books = [self.main, *(book for _, book, _ in chosen)]
        return EvictionPlan(books, [] if more is None else [*gone.values(), *more])

    def _victims(
        self,
        waiter: Waiter,
        book: Budget,
        line: Line,
        wanted_by: WantedBy,
        *,
        freed: int = 0,
        beside: Collection[str] = (),
    ) -> list[EvictionCandidate] | None:
        """Returns the replicas to evict for a claim on a budget. None if the claim cannot be met
        there now.

        Args:
            freed: bytes that become free when the replicas in `beside` are evicted.
            beside: replicas that are evicted or replaced anyway.
        """
        lacks = line.lacks(waiter.asked, book)
        if lacks <= 0:
            return []
        if line.is_short(book):
            return None
        return self._evictions[book].victims(
            waiter.asked.of(book),
            lacks - book.leaving - freed,
            wanted_by=wanted_by(book),
            is_patient=line.is_patient(waiter),
            beside=beside,
        )

    def yielding(self, asked: MemoryNeed) -> list[EvictionCandidate]:
        """Returns the prepared workers that must end so that a claim fits without the eviction of a
        replica. Empty if that is not enough.
        """
        needed = self._yielding(asked, self.main)
        if needed is None or asked.wanted is None:
            return needed or []
        options = [self._yielding(asked, book) for book in self.eligible(asked)]
        fitting = sorted((option for option in options if option is not None), key=len)
        if len(fitting) < asked.wanted.count:
            return []
        chosen = [*needed, *(each for option in fitting[: asked.wanted.count] for each in option)]
        return [*{each.replica_id: each for each in chosen}.values()]

    def _yielding(self, asked: MemoryNeed, book: Budget) -> list[EvictionCandidate] | None:
        """Returns the workers that must end on one budget. None if that is not enough."""
        missing, chosen = asked.of(book).size - asked.room(book), list[EvictionCandidate]()
        for worker in self._evictions[book].prepared():
            if missing > 0 and worker.replica_id != asked.worker(book):
                chosen.append(worker)
                missing -= book.size(worker.replica_id)
        return chosen if missing <= 0 else None

    def surplus(self, book: Budget, wanted_by: Collection[str]) -> list[EvictionCandidate]:
        """Returns the idle replicas to evict until the rest of a budget fits again."""
        return self._evictions[book].surplus(wanted_by) if book.excess > 0 else []

    def is_lent(self, asked: MemoryNeed) -> bool:
        """Returns True if a `hot` deployment's claim exceeds the share that its account may keep
        hot.
        """
        of_devices = [book.is_lent(asked.of(book)) for book in self.eligible(asked)]
        return self.main.is_lent(asked.need) or (bool(of_devices) and all(of_devices))

    def shortage(self, asked: MemoryNeed) -> str:
        """Returns why a claim waits, in words."""
        places = self.eligible(asked)
        if places and asked.need.size <= asked.room(self.main):
            book = max(places, key=asked.room)
            return book.shortage(asked.of(book))
        return self.main.shortage(asked.need)

    # --- reservations ---

    def kept(self, asked: MemoryNeed, replicas: int) -> dict[Budget, int]:
        """Chooses the devices that reserve memory for `replicas` replicas of a deployment. Prefers
        devices that already reserve it, then those with the least reserved for others.
        """
        reserved_by_book: dict[Budget, int] = {}
        deployment_id = asked.need.deployment_id
        if asked.wanted is None:
            return reserved_by_book
        for _ in range(replicas):

            def rank(book: Budget) -> tuple[bool, int]:
                need, already_reserved = asked.of(book).size, reserved_by_book.get(book, 0)
                reserved = book.reserved_for(deployment_id)
                return reserved < already_reserved + need, already_reserved - (
                    book.total - book.reserved + reserved
                )

            for book in sorted(self.eligible(asked), key=rank)[: asked.wanted.count]:
                reserved_by_book[book] = reserved_by_book.get(book, 0) + asked.of(book).size
        return reserved_by_book

    # --- shares of accounts ---

    def shares(self) -> "Shares":
        return Shares(self)


class Shares:
    """Shares of accounts: each account's largest fraction of any kind of memory."""

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

    def add(self, asked: MemoryNeed) -> None:
        """Counts a claim as if it were granted."""
        account = asked.need.account
        self._main[account] = self._main.get(account, 0) + asked.need.size
        if asked.wanted:
            sizes = sorted(asked.of(book).size for book in self._budgets.eligible(asked))
            more = sum(sizes[: asked.wanted.count])
            self._devices[account] = self._devices.get(account, 0) + more


def _check_weights(device_need: DeviceNeed, book: Budget, size: int) -> None:
    """Raises `CapacityError` if a share of a device cannot hold the model's weights."""
    if device_need.share is not None and device_need.lacks(size):
        raise CapacityError(
            f"The model's weights take {in_words(device_need.weights)}, and its engine may use "
            f"{in_words(size)} of {book.name}.",
            code="insufficient_memory",
            retry_after_s=60,
        )


def _held_by_others(book: Budget, device: Device, use: DeviceUse) -> int:
    """Returns the bytes of a device held by processes other than replicas of this server."""
    if device.used_bytes is None:
        return 0
    ours = sum(use.real.get(replica_id, size) for replica_id, size in book.sizes().items())
    others = device.used_bytes - ours - use.left.get(device.uuid, 0)
    return others if others >= LEAST_OTHER_BYTES else 0


def _is_elsewhere(asked: MemoryNeed, book: Budget) -> bool:
    """Returns True if a budget reserves nothing for one more replica of the deployment."""
    return book.unclaimed(asked.need.deployment_id) < asked.of(book).size


def _counted(devices: Sequence[Budget]) -> str:
    indices = [str(book.device.index) for book in devices if book.total and book.device]
    return f"GPU {', '.join(indices)}" if indices else "none now"
