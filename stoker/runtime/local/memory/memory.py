"""Allocates the memory of the machine and of its GPUs to claims.

The machine's memory and each device's memory have a budget. A claim gets its needs from all budgets
at once, or waits: no claim holds a part of its needs while it waits for the rest.

Waiting accounts take turns. The next claim is that of the account with the smallest dominant share
(Dominant Resource Fairness; Ghodsi et al., NSDI 2011). Claims of one account are served first come,
first served.

If no room is left, idle replicas are evicted. The account furthest above its fair share comes
first. Then `cold` deployments come before `warm` ones, least often called first. A working replica
is never killed for a claim. After claims have waited for `PATIENCE_S`, it is drained, so that it
ends when it has finished, and the deployments take turns.

An account may keep all memory `hot` while it is alone. The memory that it keeps beyond its
`hot_share` is lent. Once idle, it is taken back for an account that has less than its fair share.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from stoker.base.errors import CapacityError
from stoker.runtime.local.memory.budget import Budget
from stoker.runtime.local.memory.budgets import Budgets, DeviceUse
from stoker.runtime.local.memory.candidates import Candidates, EvictionCandidate
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.devices import Device, DeviceNeed
from stoker.runtime.local.memory.prepared_claims import PreparedClaims
from stoker.runtime.local.memory.sleepers import Sleepers
from stoker.runtime.local.memory.waiting import Line, MemoryNeed, Waiter
from stoker.runtime.observed import DeviceStats


class ReplicaEndedError(Exception):
    """Raised in a waiting claim if its replica has ended."""


class MemoryAllocator:
    """Memory of the machine and its devices. All methods run on the event loop."""

    def __init__(
        self,
        total: int,
        candidates: Candidates,
        clock: Callable[[], float] = time.monotonic,
        *,
        hot_share: float = 1.0,
        devices: Sequence[Device] = (),
        device_share: float = 1.0,
    ) -> None:
        """
        Args:
            total: the budget of the machine's memory in bytes.
            hot_share: the fraction of each budget that one account may keep `hot` next to others.
            device_share: the fraction of each device's memory that replicas may use.
        """
        self._candidates = candidates
        self._clock = clock
        self._budgets = Budgets(
            total,
            candidates,
            clock,
            hot_share=hot_share,
            devices=devices,
            device_share=device_share,
        )
        self.main = self._budgets.main
        self.devices: Sequence[Budget] = self._budgets.devices
        self.prepared = PreparedClaims(self._budgets)
        """Claims of prepared workers. Call `settle` after a change."""
        self._waiters: list[Waiter] = []
        self._sleepers = Sleepers(self.main, self.devices)
        self._got_at: dict[str, float] = {}
        """Maps each account to the time when its last waiting claim was granted."""

    # --- queries ---

    @property
    def is_short(self) -> bool:
        """True if a claim waits."""
        return bool(self._waiters)

    def waiting(self) -> list[tuple[str, int, str]]:
        """Returns the waiting claims in order: deployment, bytes and reason in words."""
        return [
            (
                waiter.asked.need.deployment_id,
                waiter.asked.need.size,
                self._budgets.shortage(waiter.asked),
            )
            for waiter in self._in_turn()
        ]

    def devices_of(self, replica_id: str) -> list[tuple[Device, int]]:
        """Returns the devices that a replica has claimed, with the bytes of each."""
        return [
            (book.device, book.size(replica_id))
            for book in self.devices
            if book.device and book.has(replica_id)
        ]

    def device_stats(self) -> list[DeviceStats]:
        return [
            DeviceStats(
                index=book.device.index,
                name=book.device.name,
                total_bytes=book.device.total_bytes,
                budget_bytes=book.total,
                held_bytes=book.held,
                uuid=book.device.uuid,
                used_bytes=book.used_bytes,
                other_bytes=book.other_bytes,
                prepared_workers=len(book.usable_workers),
            )
            for book in self.devices
            if book.device
        ]

    def has_room(self, need: Need, wanted: DeviceNeed | None = None) -> bool:
        """Returns True if a replica would fit without an eviction."""
        try:
            claim = self._budgets.possible(MemoryNeed(need, wanted))
        except CapacityError:
            return False
        return self._has_room(claim)

    def _has_room(self, asked: MemoryNeed) -> bool:
        """Prepared workers end for a claim, so their memory counts as free."""
        has_places = self._budgets.places(asked, Line(self._clock())) is not None
        return has_places or bool(self._budgets.yielding(asked))

    def why_no_device(self, need: Need, wanted: DeviceNeed | None) -> str:
        """Returns why a claim can never get a device, in words. Empty if it can."""
        error = self.refusal(need, wanted)
        return error.message if error else ""

    def refusal(self, need: Need, wanted: DeviceNeed | None) -> CapacityError | None:
        """Returns the error of a claim that can never get a device. None if it can."""
        return self._budgets.refusal(MemoryNeed(need, wanted))

    def shortage(self, need: Need, wanted: DeviceNeed | None = None) -> str:
        """Returns why a deployment's claim waits, in words."""
        return self._budgets.shortage(MemoryNeed(need, wanted))

    # --- reservations ---

    def reserve(self, need: Need, wanted: DeviceNeed | None = None, replicas: int = 1) -> None:
        """Reserves memory for a `hot` deployment, whether it is loaded or not.

        Args:
            need: need of all its replicas together.
            wanted: GPU needs of each replica.
        """
        self.main.reserve(need)
        try:
            reserved_by_book = self._budgets.kept(
                self._budgets.possible(MemoryNeed(need, wanted)), replicas
            )
        except CapacityError:
            # The need was checked before, so a device may have disappeared since.
            reserved_by_book = dict[Budget, int]()
        for book in self.devices:
            book.unreserve(need.deployment_id)
            if book in reserved_by_book:
                book.reserve(Need(need.deployment_id, reserved_by_book[book], need.account))
        self.settle()

    def unreserve(self, deployment_id: str) -> None:
        unreserved = [book.unreserve(deployment_id) for book in self._budgets.all]
        if any(unreserved):
            self.settle()

    def check_hot(
        self, need: Need, wanted: DeviceNeed | None = None, replicas: int = 1, *, is_alone: bool
    ) -> None:
        """Raises `CapacityError` if the memory cannot be reserved for a deployment of the account.

        Args:
            is_alone: no other account has deployments.
        """
        self.main.check_hot(need, is_alone=is_alone)
        reserved_by_book = self._budgets.kept(
            self._budgets.possible(MemoryNeed(need, wanted)), replicas
        )
        for book, size in reserved_by_book.items():
            book.check_hot(Need(need.deployment_id, size, need.account), is_alone=is_alone)

    # --- claims ---

    async def claim(self, replica_id: str, need: Need, wanted: DeviceNeed | None = None) -> None:
        """Waits until the claim of a replica is granted, and evicts others for it.

        Raises `CapacityError` if it can never fit.
        """
        await self._wait_for(replica_id, MemoryNeed(need, wanted), self.release)

    async def _wait_for(
        self, replica_id: str, asked: MemoryNeed, give_back: Callable[[str], None]
    ) -> None:
        claim = self._budgets.possible(asked)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = Waiter(replica_id, claim, self._clock(), granted)
        self._waiters.append(waiter)
        self.settle()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            # The claim may have been granted and cancelled at the same time.
            give_back(replica_id)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def take(self, replica_id: str, need: Need, wanted: DeviceNeed | None = None) -> bool:
        """Claims free memory without overtaking a waiting claim. Returns False if not enough is
        free. It may be free soon if prepared workers hold it, because they end then.

        Raises `CapacityError` if the claim can never fit.
        """
        return self._take(replica_id, MemoryNeed(need, wanted))

    def _take(self, replica_id: str, asked: MemoryNeed) -> bool:
        claim = self._budgets.possible(asked)
        if self._waiters:
            return False
        places = self._budgets.places(claim, Line(self._clock()))
        if places is None:
            for worker in self._budgets.yielding(claim):
                self._evict(worker)
            return False
        self._enter(replica_id, claim, places)
        return True

    def resize(self, replica_id: str, size: int) -> None:
        """Sets the measured size of a replica in the machine's memory."""
        if self.main.resize(replica_id, size):
            self.settle()

    def resize_devices(self, replica_id: str, size: int) -> None:
        """Sets the measured size of a replica on each of its devices."""
        resized = [book.resize(replica_id, size) for book in self.devices]
        if any(resized):
            self.settle()

    def leave_devices(self, replica_id: str) -> None:
        """Releases the devices of a replica that runs on the CPU. A sleeping one keeps what it
        still holds of them. The claim on main memory stays.
        """
        if self._sleepers.leave(replica_id):
            self.settle()

    def ending(self, replica_id: str) -> None:
        """Marks a replica that is about to end: its memory will be free."""
        for book in self._budgets.all:
            book.ending(replica_id)

    def release(self, replica_id: str) -> None:
        self._sleepers.end(replica_id)
        self.prepared.drop(replica_id)
        for waiter in self._waiters:
            if waiter.replica_id == replica_id and not waiter.granted.done():
                waiter.granted.set_exception(ReplicaEndedError())
        struck = [book.strike(replica_id) for book in self._budgets.all]
        if self.prepared.give_back(replica_id) or any(struck):
            self.settle()

    # --- sleep ---

    def fell_asleep(self, replica_id: str, rest: Callable[[Device], int]) -> None:
        """Releases the devices of a sleeping replica.

        Args:
            rest: returns the bytes that the replica still holds of a device.
        """
        self._sleepers.keep(replica_id, rest)
        self.leave_devices(replica_id)

    def woke_up(self, replica_id: str) -> None:
        """Releases the main memory that held the device's bytes of a replica."""
        if moved := self._sleepers.end(replica_id):
            self.resize(replica_id, self.main.size(replica_id) - moved)

    def asleep_bytes(self, replica_id: str) -> int:
        """Returns the bytes of a sleeping replica's device that are in main memory."""
        return self._sleepers.main_bytes(replica_id)

    async def claim_device(self, replica_id: str, deployment_id: str, account: str) -> None:
        """Waits for memory of the device that a sleeping replica was on, and evicts others for it.

        Raises `CapacityError` if the device has disappeared, and `ReplicaEndedError`.
        """
        asked = self._device_need(replica_id, deployment_id, account)
        await self._wait_for(replica_id, asked, self.leave_devices)

    def take_device(self, replica_id: str, deployment_id: str, account: str) -> bool:
        """As `claim_device`, but only free memory. Returns False if not enough is free."""
        return self._take(replica_id, self._device_need(replica_id, deployment_id, account))

    def has_device_room(self, replica_id: str, deployment_id: str, account: str) -> bool:
        """Returns True if a sleeping replica could wake without an eviction."""
        return self._has_room(self._device_need(replica_id, deployment_id, account))

    def _device_need(self, replica_id: str, deployment_id: str, account: str) -> MemoryNeed:
        # The replica keeps its claim on main memory.
        return MemoryNeed(Need(deployment_id, 0, account), self._sleepers.need(replica_id))

    # --- devices ---

    def shows_loss(self, devices: Sequence[Device], use: DeviceUse) -> bool:
        """Returns True if a device has disappeared, or if other processes hold more of one than
        known.
        """
        return self._budgets.shows_loss(devices, use)

    def found(self, devices: Sequence[Device], use: DeviceUse | None = None) -> bool:
        """Updates which of the devices present at the start are still present, and how much of them
        other processes hold. Missing devices serve no claims, and claims that can only fit on them
        are rejected. Returns True if the set of devices changed.
        """
        is_other_set, has_changed = self._budgets.found(devices, use or DeviceUse())
        if not has_changed:
            return False
        for waiter in self._waiters:
            try:
                waiter.asked = self._budgets.possible(waiter.asked)
            except CapacityError as error:
                if not waiter.granted.done():
                    waiter.granted.set_exception(error)
        self.settle()
        return is_other_set

    def settle(self) -> None:
        """Grants the claims that fit, and evicts replicas for the next claims."""
        for book in self._budgets.all:
            for candidate in self._budgets.surplus(book, self._wanted_by(book)):
                self._evict(candidate)
        line = Line(self._clock())
        for waiter in self._in_turn():
            if waiter.granted.done():
                continue
            places = self._budgets.places(waiter.asked, line)
            if places is not None:
                self._grant(waiter, places)
                continue
            if self._budgets.is_vain(waiter.asked, line):
                continue
            books, victims = self._budgets.plan(waiter, line, self._wanted_by)
            for candidate in victims:
                self._evict(candidate, waiter.asked)
            # A claim on lent memory delays no other claim.
            if not self._budgets.is_lent(waiter.asked):
                line.stand(waiter, books)

    def _in_turn(self) -> list[Waiter]:
        """Sorts the waiting claims. The account that holds least comes first, counting its claims
        earlier in the queue.
        """
        if len({waiter.account for waiter in self._waiters}) < 2:
            return sorted(self._waiters, key=lambda entry: self._budgets.is_lent(entry.asked))
        has = self._budgets.shares()
        ranked: list[tuple[bool, float, float, Waiter]] = []
        for waiter in self._waiters:
            # Among accounts with equal shares, the one that waited longest since its last grant.
            got_at = self._got_at.get(waiter.account, -math.inf)
            is_lent = self._budgets.is_lent(waiter.asked)
            ranked.append((is_lent, has.of(waiter.account), got_at, waiter))
            has.add(waiter.asked)
        return [waiter for *_, waiter in sorted(ranked, key=lambda entry: entry[:3])]

    def _wanted_by(self, book: Budget) -> set[str]:
        """Returns the accounts that wait for a budget."""
        return {
            waiter.account for waiter in self._waiters if book is self.main or waiter.asked.wanted
        }

    def _grant(self, waiter: Waiter, places: Sequence[Budget]) -> None:
        self._enter(waiter.replica_id, waiter.asked, places)
        self._got_at[waiter.account] = self._clock()
        self._waiters.remove(waiter)
        waiter.granted.set_result(None)

    def _enter(self, replica_id: str, asked: MemoryNeed, places: Sequence[Budget]) -> None:
        # A replica that wakes has a claim on main memory.
        is_waking = replica_id in self._sleepers
        self.prepared.replace(replica_id, asked, places)
        for book in places if is_waking else (self.main, *places):
            need = asked.of(book)
            if is_waking:
                need = replace(need, size=need.size + book.size(replica_id))
            book.enter(replica_id, need)

    def _evict(self, candidate: EvictionCandidate, asked: MemoryNeed | None = None) -> None:
        """Makes a replica give way to a claim: it falls asleep if it can, otherwise it ends."""
        spare = asked.need.size if asked else 0
        if candidate.can_sleep and self._sleepers.begin(candidate, spare):
            self._candidates.put_to_sleep(candidate.replica_id)
            return
        self.ending(candidate.replica_id)
        self._candidates.evict(candidate.replica_id)
