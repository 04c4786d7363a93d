"""Who gets memory next: of the machine's, and of its graphics devices'.

There is a book of the machine's memory and one of each device's. A claim gets what it needs of
all of them at once, or waits: nobody holds a part of what it needs while it waits for the rest.
Accounts that wait take turns: the next claim is that of the account that holds least, of what it
holds most of (Dominant Resource Fairness; Ghodsi et al., NSDI 2011), and its own claims are first
come, first served. Where there is no room, idle replicas are evicted: of the account that is
furthest above its fair share first; then of `cold` deployments before `warm` ones, least recently
used first. One that works is never killed for it; but where claims have waited for `PATIENCE_S`, it
is drained, so that it ends once it has finished, and the deployments take turns.

An account may keep all memory `hot` while it is alone. What it keeps beyond its `hot_share` is
lent: it is taken back, once idle, for an account that has less than its fair share.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from stoker.base.errors import CapacityError
from stoker.runtime.local.memory.budget import Budget, Need
from stoker.runtime.local.memory.budgets import Budgets
from stoker.runtime.local.memory.candidates import Candidate, Candidates
from stoker.runtime.local.memory.devices import Device, Wanted
from stoker.runtime.local.memory.waiting import Asked, Line, Waiter


class Memory:
    """The machine's memory and that of its devices. All of it runs on the event loop."""

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
            total: the budget of the machine's memory, bytes.
            hot_share: the part of each budget that one account may keep `hot` beside others.
            device_share: the part of each device's memory that replicas may take.
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
        self._waiters: list[Waiter] = []
        self._got_at: dict[str, float] = {}
        """When accounts that wait were last given memory."""

    # --- what is known ---

    def waiting(self) -> list[tuple[str, int, str]]:
        """The claims that wait, in turn: deployment, bytes, and why, in words."""
        return [
            (one.asked.need.deployment_id, one.asked.need.size, self._budgets.shortage(one.asked))
            for one in self._in_turn()
        ]

    def devices_of(self, replica_id: str) -> list[tuple[Device, int]]:
        """The devices that a replica has claimed, and how much of each, bytes."""
        return [
            (book.device, book.size(replica_id))
            for book in self.devices
            if book.device and book.has(replica_id)
        ]

    def has_room(self, need: Need, wanted: Wanted | None = None) -> bool:
        """Whether a replica would fit without an eviction."""
        try:
            asked = self._budgets.possible(Asked(need, wanted))
        except CapacityError:
            return False
        return self._budgets.places(asked, Line(self._clock())) is not None

    def shortage(self, need: Need, wanted: Wanted | None = None) -> str:
        """Why a deployment's claim waits, in words."""
        return self._budgets.shortage(Asked(need, wanted))

    # --- what is kept ---

    def reserve(self, need: Need, wanted: Wanted | None = None, replicas: int = 1) -> None:
        """Keep memory for a `hot` deployment, whether it is loaded or not.

        Args:
            need: of all its replicas together.
            wanted: of each of them.
        """
        self.main.reserve(need)
        try:
            kept = self._budgets.kept(self._budgets.possible(Asked(need, wanted)), replicas)
        except CapacityError:
            # It was checked before it came to this: a device may be gone.
            kept = dict[Budget, int]()
        for book in self.devices:
            book.unreserve(need.deployment_id)
            if book in kept:
                book.reserve(Need(need.deployment_id, kept[book], need.account))
        self.settle()

    def unreserve(self, deployment_id: str) -> None:
        unreserved = [book.unreserve(deployment_id) for book in self._budgets.all]
        if any(unreserved):
            self.settle()

    def check_hot(
        self, need: Need, wanted: Wanted | None = None, replicas: int = 1, *, is_alone: bool
    ) -> None:
        """Raises `CapacityError` where so much cannot be kept for a deployment of the account.

        Args:
            is_alone: no other account has deployments.
        """
        self.main.check_hot(need, is_alone=is_alone)
        kept = self._budgets.kept(self._budgets.possible(Asked(need, wanted)), replicas)
        for book, size in kept.items():
            book.check_hot(Need(need.deployment_id, size, need.account), is_alone=is_alone)

    # --- claims ---

    async def claim(self, replica_id: str, need: Need, wanted: Wanted | None = None) -> None:
        """Wait until a replica may take what it needs, evicting others for it.

        Raises `CapacityError` where it can never fit.
        """
        asked = self._budgets.possible(Asked(need, wanted))
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = Waiter(replica_id, asked, self._clock(), granted)
        self._waiters.append(waiter)
        self.settle()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            # It may have been granted and cancelled at once.
            self.release(replica_id)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def take(self, replica_id: str, need: Need, wanted: Wanted | None = None) -> bool:
        """Claim what is free without passing a claim that waits; False where that is too little.

        Raises `CapacityError` where it can never fit.
        """
        asked = self._budgets.possible(Asked(need, wanted))
        places = None if self._waiters else self._budgets.places(asked, Line(self._clock()))
        if places is None:
            return False
        self._enter(replica_id, asked, places)
        return True

    def resize(self, replica_id: str, size: int) -> None:
        """What a replica holds of the machine's memory was measured."""
        if self.main.resize(replica_id, size):
            self.settle()

    def resize_devices(self, replica_id: str, size: int) -> None:
        """What a replica holds of each of its devices was measured."""
        resized = [book.resize(replica_id, size) for book in self.devices]
        if any(resized):
            self.settle()

    def ending(self, replica_id: str) -> None:
        """A replica is about to end: its memory will be free."""
        for book in self._budgets.all:
            book.ending(replica_id)

    def release(self, replica_id: str) -> None:
        struck = [book.strike(replica_id) for book in self._budgets.all]
        if any(struck):
            self.settle()

    def found(self, devices: Sequence[Device]) -> bool:
        """The devices that are there now, of those that were there at the start: nothing is given
        out of one that is gone, and who waits for what was there only is refused. Whether that has
        changed.
        """
        if not self._budgets.found(devices):
            return False
        for waiter in self._waiters:
            try:
                waiter.asked = self._budgets.possible(waiter.asked)
            except CapacityError as error:
                if not waiter.granted.done():
                    waiter.granted.set_exception(error)
        self.settle()
        return True

    def settle(self) -> None:
        """Grant what fits, and make room for those whose turn it is."""
        for book in self._budgets.all:
            for candidate in book.surplus(self._wanted_by(book)) if book.excess > 0 else ():
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
                self._evict(candidate)
            # Who waits for what was lent holds nobody up.
            if not self._budgets.is_lent(waiter.asked):
                line.stand(waiter, books)

    def _in_turn(self) -> list[Waiter]:
        """Those who wait: the next is of the account that holds least, with what it got before."""
        if len({waiter.account for waiter in self._waiters}) < 2:
            return sorted(self._waiters, key=lambda one: self._budgets.is_lent(one.asked))
        has = self._budgets.shares()
        ranked: list[tuple[bool, float, float, Waiter]] = []
        for waiter in self._waiters:
            # Of those that hold as much, the one that has got nothing for longer.
            got_at = self._got_at.get(waiter.account, -math.inf)
            is_lent = self._budgets.is_lent(waiter.asked)
            ranked.append((is_lent, has.of(waiter.account), got_at, waiter))
            has.add(waiter.asked)
        return [waiter for *_, waiter in sorted(ranked, key=lambda one: one[:3])]

    def _wanted_by(self, book: Budget) -> set[str]:
        """The accounts that wait for something of a book."""
        return {one.account for one in self._waiters if book is self.main or one.asked.wanted}

    def _grant(self, waiter: Waiter, places: Sequence[Budget]) -> None:
        self._enter(waiter.replica_id, waiter.asked, places)
        self._got_at[waiter.account] = self._clock()
        self._waiters.remove(waiter)
        waiter.granted.set_result(None)

    def _enter(self, replica_id: str, asked: Asked, places: Sequence[Budget]) -> None:
        for book in (self.main, *places):
            book.enter(replica_id, asked.of(book))

    def _evict(self, candidate: Candidate) -> None:
        self.ending(candidate.replica_id)
        self._candidates.evict(candidate.replica_id)
