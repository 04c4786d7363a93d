"""Queue of the samples that wait for a forward pass.

The engine takes all queued entries when it asks, so a lone request never waits for others. Only
inputs that are quickly prepared, one after the other, wait for the last of them.

Inputs of many samples, such as the sentences of a spoken text, take turns: a later input waits for
one of them, not for all. Requests of different keys take turns, too: a late request waits for one
of each other key, not for a thousand of one key.

Samples of higher tiers run first. Background samples join a batch of live samples only if they
hardly prolong its pass. Alone, their batches are small while live samples keep arriving.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

from stoker.base.fairness import Tier, TierTurns
from stoker.replica.batch_choice import (
    NEAR_PACKED,
    STARTS_A_BUDGET,
    QueuedSample,
    choose,
    choose_packed,
    fitting,
    nearest,
    tokens_of,
)

MOST_GATHERING_S = 0.002
"""Maximum seconds for which the engine waits while further inputs are prepared. A pass of a small
model takes about as long, whatever its size.
"""
BACKGROUND_SHARE = 0.1
"""Maximum part by which background samples may prolong a pass of live samples."""
LIVE_S = 2.0
"""Seconds after a live sample for which batches of background samples are kept small."""
_SHORT = 0.5
"""Part of a batch below which the engine soon waits for entries."""


class BatchQueue:
    """Samples that wait for the engine, ordered by turn. Thread-safe."""

    def __init__(
        self,
        budget: int,
        starts: float = STARTS_A_BUDGET,
        *,
        is_packed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            starts: ratio of the time of a full budget's tokens to the start time of a pass.
            is_packed: the engine computes no padding.
            clock: monotonic time in seconds.
        """
        self.budget = budget
        self.is_packed = is_packed
        self._starts = starts
        self._entries: list[QueuedSample] = []
        self._cost = 0
        """Sum of the entries' costs."""
        self._turn = 0
        """Turn of the last batch."""
        self._turns = Turns()
        self._tiers = TierTurns()
        self._clock = clock
        self._live_until = -math.inf
        """Time until which batches of background samples are kept small."""
        self._live_cost = 0
        """Cost of the latest batch with live samples, without its background samples."""
        self._more_follow = False
        """True if the latest entries are soon followed by others."""
        self._changed = threading.Condition()
        self._closed = self._woken = False

    def put(
        self,
        entries: Sequence[QueuedSample],
        party: str = "",
        tier: Tier = Tier.DEFAULT,
        *,
        more_follow: bool = False,
    ) -> None:
        """Adds the samples of one input: one per turn, starting with the next turn.

        Args:
            party: the API key of the request.
            tier: the tier of the request.
            more_follow: the engine waits for further entries until `announce`, a full batch or
                the end of `MOST_GATHERING_S`.
        """
        with self._changed:
            for turn, entry in enumerate(entries, self._turn + 1):
                entry.turn, entry.party, entry.tier = turn, party, tier
            if not tier.is_background:
                self._live_until = self._clock() + LIVE_S
            is_sorted = not self._entries or self._entries[-1].turn <= self._turn + 1
            # Without entries, the engine waits for the first one.
            is_awake = self._more_follow and bool(self._entries)
            self._entries.extend(entries)
            self._cost += sum(entry.cost for entry in entries)
            if not is_sorted:
                # The sort is stable: in each turn, the oldest comes first.
                self._entries.sort(key=lambda entry: entry.turn)
            self._more_follow = more_follow
            if not (more_follow and is_awake) or self._is_full():
                self._changed.notify()

    def announce(self) -> None:
        """Lets the engine take the entries, because no others follow soon. Callable from any
        thread.
        """
        if self._more_follow:
            with self._changed:
                self._more_follow = False
                self._changed.notify()

    def drop(self, request_id: int) -> int:
        """Removes a request's samples. Returns how many were still waiting."""
        with self._changed:
            remaining = [entry for entry in self._entries if entry.request_id != request_id]
            dropped = len(self._entries) - len(remaining)
            self._entries = remaining
            self._cost = sum(entry.cost for entry in remaining)
            return dropped

    def wake(self) -> None:
        """Makes `wait` return: now, or the next time that it would wait."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the queue. `wait` returns False once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for work or `wake`, for at most `timeout` seconds. Returns False if closed and
        empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._closed or self._woken, timeout)
            if self._more_follow and self._entries:
                self._changed.wait_for(self._is_gathered, MOST_GATHERING_S)
                self._more_follow = False
            self._woken = False
            return bool(self._entries) or not self._closed

    def wait_until_full(self, timeout: float) -> bool:
        """Waits until the entries fill a batch or the queue is closed, for at most `timeout`
        seconds. Returns False on timeout.
        """
        with self._changed:
            return self._changed.wait_for(self._is_full, timeout)

    def wait_for_entries(self, timeout: float) -> bool:
        """Waits until an entry waits or the queue is closed, for at most `timeout` seconds. Returns
        False on timeout.
        """
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._entries) or self._closed, timeout)

    @property
    def is_short(self) -> bool:
        """True if the entries fill less than a part of a batch. Callable from any thread."""
        return self._cost < self.budget * _SHORT

    def _is_gathered(self) -> bool:
        return not self._more_follow or self._woken or self._is_full()

    def _is_full(self) -> bool:
        return self._closed or self._cost >= self.budget

    def take(self) -> list[QueuedSample]:
        """Returns the next batch, or an empty list if no work waits.

        The batch always contains the oldest entry of the earliest turn of the next key of the next
        tier. It is filled with entries of similar length: see `choose`.
        """
        with self._changed:
            if not self._entries:
                return []
            tiers = {entry.tier for entry in self._entries}
            tier = next(iter(tiers)) if len(tiers) == 1 else self._tiers.next(tiers)
            batch = self._background_batch() if tier.is_background else self._live_batch(tier)
            self._turn = max(self._turn, batch[0].turn)
            chosen = set(map(id, batch))
            self._entries = [entry for entry in self._entries if id(entry) not in chosen]
            self._cost -= sum(entry.cost for entry in batch)
            return batch

    def _live_batch(self, tier: Tier) -> list[QueuedSample]:
        """Returns the next batch of a tier. Entries of other tiers fill the rest of it."""
        entries = [entry for entry in self._entries if entry.tier is tier]
        batch = self._chosen(entries, self.budget)
        if len(entries) < len(self._entries):
            others = [entry for entry in self._entries if entry.tier is not tier]
            live = [entry for entry in others if not entry.tier.is_background]
            batch += self._fill(batch, live, self.budget)
            self._live_cost = self._cost_of(batch)
            start = self.budget / self._starts
            room = self._live_cost + BACKGROUND_SHARE * (start + self._live_cost)
            background = [entry for entry in others if entry.tier.is_background]
            batch += self._fill(batch, background, min(self.budget, int(room)))
        else:
            self._live_cost = self._cost_of(batch)
        return batch

    def _background_batch(self) -> list[QueuedSample]:
        """Returns the next batch of background entries. While live entries keep arriving, a pass
        takes no longer than one of theirs, unless it has a single entry.
        """
        entries = [entry for entry in self._entries if entry.tier.is_background]
        is_live = self._clock() < self._live_until and self._live_cost > 0
        return self._chosen(entries, min(self.budget, self._live_cost) if is_live else self.budget)

    def _chosen(self, entries: list[QueuedSample], budget: int) -> list[QueuedSample]:
        """Returns the next batch of some entries."""
        entries = self._in_turn(entries)
        if self.is_packed:
            return choose_packed(entries, budget)
        return choose(entries, budget, self._starts * budget / self.budget)

    def _fill(
        self, batch: Sequence[QueuedSample], entries: Sequence[QueuedSample], budget: int
    ) -> list[QueuedSample]:
        """Returns the entries that join a batch, so that it costs at most `budget`."""
        if not entries or batch[0].sample.alone:
            return []
        first = batch[0]
        able = nearest([first, *entries])
        if self.is_packed:
            longest = max(tokens_of(entry) for entry in batch)
            room, joined = budget - self._cost_of(batch), list[QueuedSample]()
            for entry in able[:NEAR_PACKED]:
                if (own := tokens_of(entry)) <= min(room, longest):
                    joined.append(entry)
                    room -= own
            return joined
        return fitting(able, sorted(entry.cost for entry in batch), budget)

    def _cost_of(self, batch: Sequence[QueuedSample]) -> int:
        if self.is_packed:
            return sum(tokens_of(entry) for entry in batch)
        return len(batch) * max(entry.cost for entry in batch)

    def _in_turn(self, entries: list[QueuedSample]) -> list[QueuedSample]:
        """Returns the entries, with the one that must run next in front."""
        party = self._turns.next(dict.fromkeys(entry.party for entry in entries))
        first = next(entry for entry in entries if entry.party == party)
        if first is entries[0]:
            return entries
        return [first, *(entry for entry in entries if entry is not first)]

    def __len__(self) -> int:
        return len(self._entries)


class Turns:
    """Rotation among waiting parties. The party that has waited longest since its last turn is
    next.
    """

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._number = 0

    def next(self, waiting: Collection[str]) -> str:
        """Returns the next party. `waiting` must not be empty."""
        self._taken = {party: at for party, at in self._taken.items() if party in waiting}
        chosen = min(waiting, key=lambda party: self._taken.get(party, 0))
        self._number += 1
        self._taken[chosen] = self._number
        return chosen
