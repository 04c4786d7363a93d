"""Chooses the samples that share a forward pass.

The budget counts *padded* tokens: a batch costs its longest sample times its size. If the engine
packs its batches, the budget counts only real tokens. Pixels and sound are counted as tokens, too.
The engine takes all queued entries when it asks, so a lone request never waits for others. Only
inputs that are quickly prepared, one after the other, wait for the last of them.

Inputs of many samples, such as the sentences of a spoken text, take turns: a later input waits for
one of them, not for all. Requests of different keys take turns, too: a late request waits for one
of each other key, not for a thousand of one key.
"""

import math
import threading
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from stoker.models.stages.base import Sample, bucket

STRETCH = 2
"""Maximum ratio of a sample's time with padding to its time alone."""
STARTS_A_BUDGET, DEVICE_STARTS_A_BUDGET = 14, 3
"""Number of passes whose start time equals the time of a full budget's tokens: on a CPU and on a
GPU.

On a CPU, a pass over n tokens takes a + b n. Calibration doubles n while that gains a twentieth, so
a / b lies between a nineteenth and a tenth of the resulting budget. On a GPU, passes of up to some
thousand tokens take the same time, and larger ones b n.
"""

MOST_GATHERING_S = 0.002
"""Maximum seconds for which the engine waits while further inputs are prepared. A pass of a small
model takes about as long, whatever its size.
"""
_MOST_PADDING = 8
"""Maximum ratio of a packed batch's padded tokens to the budget. Embeddings and heads compute the
padding too.
"""
_SHORT = 0.5
"""Part of a batch below which the engine soon waits for entries."""
_NEAR, _NEAR_PACKED = 127, 511
"""Maximum number of other entries that a batch is chosen from: padded and packed. Finding the best
split takes time, too.
"""


def cost(length: int, fixed: int) -> int:
    """Returns the cost of one sample in a batch with a longest sample of `length` tokens."""
    return bucket(length) + fixed


@dataclass(eq=False)
class QueuedSample:
    """Sample that waits for the engine, with its request and its place in it."""

    request_id: int
    item: int
    position: int
    sample: Sample
    owner: Any = field(repr=False)
    length: int
    """Length in the dimension that a batch pads."""
    fixed_cost: int = 0
    key: Hashable = ()
    """Batch key. Entries share a batch only if their keys are equal."""
    turn: int = 0
    """Turn, assigned by the queue. Entries of earlier turns run first."""
    party: str = ""
    """API key of the entry's request."""
    cost: int = field(init=False)
    """Cost in padded tokens if the entry is the longest of its batch."""

    def __post_init__(self) -> None:
        self.cost = cost(self.length, self.fixed_cost)


class BatchQueue:
    """Samples that wait for the engine, ordered by turn. Thread-safe."""

    def __init__(
        self, budget: int, starts: float = STARTS_A_BUDGET, *, is_packed: bool = False
    ) -> None:
        """
        Args:
            starts: ratio of the time of a full budget's tokens to the start time of a pass.
            is_packed: the engine computes no padding.
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
        self._more_follow = False
        """True if the latest entries are soon followed by others."""
        self._changed = threading.Condition()
        self._closed = self._woken = False

    def put(
        self, entries: Sequence[QueuedSample], party: str = "", *, more_follow: bool = False
    ) -> None:
        """Adds the samples of one input: one per turn, starting with the next turn.

        Args:
            party: the API key of the request.
            more_follow: the engine waits for further entries until `announce`, a full batch or
                the end of `MOST_GATHERING_S`.
        """
        with self._changed:
            for turn, entry in enumerate(entries, self._turn + 1):
                entry.turn, entry.party = turn, party
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

        The batch always contains the oldest entry of the earliest turn of the next key, so that
        nothing starves. It is filled with entries of similar length: see `choose`.
        """
        with self._changed:
            if not self._entries:
                return []
            entries, budget = self._in_turn(), self.budget
            if self.is_packed:
                batch = choose_packed(entries, budget)
            else:
                batch = choose(entries, budget, self._starts)
            self._turn = max(self._turn, batch[0].turn)
            chosen = set(map(id, batch))
            self._entries = [entry for entry in self._entries if id(entry) not in chosen]
            self._cost -= sum(entry.cost for entry in batch)
            return batch

    def _in_turn(self) -> list[QueuedSample]:
        """Returns the entries, with the one that must run next in front."""
        party = self._turns.next(dict.fromkeys(entry.party for entry in self._entries))
        first = next(entry for entry in self._entries if entry.party == party)
        if first is self._entries[0]:
            return self._entries
        return [first, *(entry for entry in self._entries if entry is not first)]

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


def choose(
    entries: Sequence[QueuedSample], budget: int, starts: float = STARTS_A_BUDGET
) -> list[QueuedSample]:
    """Returns the batch of the first entry, with that entry in front.

    The entries nearest to it in length are split so that all their passes together take the least
    time. Each batch stays within the budget, and padding stretches no sample beyond `STRETCH`.
    """
    oldest = entries[0]
    if oldest.sample.alone or oldest.cost * 2 > budget:
        return [oldest]
    able = _nearest(entries)
    near = sorted([oldest, *able[:_NEAR]], key=lambda entry: entry.length)
    costs = [entry.cost for entry in near]
    if is_one_batch(costs, budget, budget / starts):
        rest = _fitting(able[_NEAR:], costs, budget)
        return [oldest, *(entry for entry in near if entry is not oldest), *rest]
    at = next(place for place, entry in enumerate(near) if entry is oldest)
    batch = next(places for places in split(costs, budget, starts) if at in places)
    return [oldest, *(near[place] for place in batch if place != at)]


def choose_packed(entries: Sequence[QueuedSample], budget: int) -> list[QueuedSample]:
    """Returns the batch of the first entry for an engine that computes no padding, with that entry
    in front.

    The entries nearest to it in length fill the budget. A batch costs the sum of its samples, so
    one pass takes less time than several passes, whatever the lengths.
    """
    batch = [entries[0]]
    if entries[0].sample.alone:
        return batch
    tokens = longest = entries[0].length + entries[0].fixed_cost
    for entry in _nearest(entries)[:_NEAR_PACKED]:
        own = entry.length + entry.fixed_cost
        widest = max(longest, own)
        is_wide = (len(batch) + 1) * widest > _MOST_PADDING * budget
        if tokens + own <= budget and not is_wide:
            batch.append(entry)
            tokens, longest = tokens + own, widest
    return batch


def _nearest(entries: Sequence[QueuedSample]) -> list[QueuedSample]:
    """Returns the entries that may share the first entry's batch, nearest in length first."""
    oldest = entries[0]
    able = [entry for entry in entries[1:] if entry.key == oldest.key and not entry.sample.alone]
    # The sort is stable: among equal lengths, the oldest comes first.
    able.sort(key=lambda entry: abs(entry.length - oldest.length))
    return able


def _fitting(
    entries: Sequence[QueuedSample], costs: Sequence[int], budget: int
) -> list[QueuedSample]:
    """Returns the first entries that fit into a batch without making it longer or stretched.

    Args:
        costs: costs of the batch's entries, in rising order.
    """
    most = max(0, budget // costs[-1] - len(costs))
    return list(takewhile(lambda entry: costs[0] <= entry.cost <= costs[-1], entries[:most]))


def is_one_batch(costs: Sequence[int], budget: int, start: float) -> bool:
    """Returns True if `split` would return one batch. Takes far less time.

    No set of further passes saves more padding than their starts take if no single one does.

    Args:
        start: start time of a pass in padded tokens.
    """
    longest = costs[-1]
    is_stretched = start + longest > STRETCH * (start + costs[0])
    if len(costs) * longest > budget or is_stretched:
        return False
    return all(
        rows * (longest - cost) < start for rows, cost in enumerate(costs, 1) if cost < longest
    )


def split(costs: Sequence[int], budget: int, starts: float = STARTS_A_BUDGET) -> list[range]:
    """Splits neighbouring samples into batches with the least total time of their passes.

    A pass of n padded tokens takes the time of n tokens and its start time (see
    `STARTS_A_BUDGET`). So neither the fewest passes nor the least padding is best.

    Args:
        costs: cost of each sample in padded tokens if it were the longest, in rising order.
    """
    start = budget / starts
    least, begins = [0.0], [0]
    for end in range(1, len(costs) + 1):
        longest = costs[end - 1]
        best, best_begin = math.inf, end - 1
        for begin in range(end - 1, -1, -1):
            rows = end - begin
            is_stretched = start + longest > STRETCH * (start + costs[begin])
            if rows > 1 and (is_stretched or rows * longest > budget):
                break
            passes = least[begin] + start + rows * longest
            if passes < best:
                best, best_begin = passes, begin
        least.append(best)
        begins.append(best_begin)
    batches: list[range] = []
    end = len(costs)
    while end:
        batches.append(range(begins[end], end))
        end = begins[end]
    return batches
