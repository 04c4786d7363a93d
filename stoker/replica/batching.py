"""Which samples go into a forward pass together.

The budget counts *padded* tokens: a batch costs its longest sample times its size; pixels and sound
are counted as so many tokens. There is no wait window: the engine takes what is queued when it
asks, so a lone request never waits for company. Inputs of many samples, such as the sentences of a
text that is spoken, take turns: what comes later waits for one of them, not for all. So do requests
of different keys: what comes late waits for one of each other key, not for a thousand of one.
"""

import math
import threading
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.models.stages.base import Sample, bucket

STRETCH = 2
"""How much longer a sample may take for its padding, than it would alone."""
_STARTS_A_BUDGET = 14
"""How often the budget's tokens take as long as a pass does before its first one.

A pass of n tokens takes a + b n. Calibration doubles n while that gains a twentieth, so that of the
budget it finds, a / b lies between a tenth and a nineteenth.
"""

_NEAR = 127
"""Most others that a batch is chosen among: finding the best split takes time, too."""


def cost(length: int, fixed: int) -> int:
    """What one sample of a batch costs whose longest has `length` tokens."""
    return bucket(length) + fixed


@dataclass(eq=False)
class Entry:
    """A sample that waits for the engine, with the request and the place it belongs to."""

    request_id: int
    item: int
    position: int
    sample: Sample
    owner: Any = field(repr=False)
    length: int
    """Of the dimension that a batch pads."""
    fixed_cost: int = 0
    key: Hashable = ()
    """Entries share a batch only where it is the same."""
    turn: int = 0
    """Those of an earlier one are taken first; the queue counts them."""
    party: str = ""
    """The API key that it is for."""


class BatchQueue:
    """Samples waiting for the engine, first those whose turn it is. Thread-safe."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._entries: list[Entry] = []
        self._turn = 0
        """Of what was taken last."""
        self._turns = Turns()
        self._changed = threading.Condition()
        self._closed = self._woken = False

    def put(self, entries: Sequence[Entry], party: str = "") -> None:
        """Add the samples of one input: one a turn, the first in the turn that comes next.

        party: the API key that it is for.
        """
        with self._changed:
            for turn, entry in enumerate(entries, self._turn + 1):
                entry.turn, entry.party = turn, party
            self._entries.extend(entries)
            # Stable: in each turn, the oldest comes first.
            self._entries.sort(key=lambda entry: entry.turn)
            self._changed.notify()

    def drop(self, request_id: int) -> int:
        """Forget a request's samples; how many were still waiting."""
        with self._changed:
            kept = [entry for entry in self._entries if entry.request_id != request_id]
            dropped = len(self._entries) - len(kept)
            self._entries = kept
            return dropped

    def wake(self) -> None:
        """Have `wait` return: now, or the next time that it would wait."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """`wait` returns False once what is queued has been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for work, for `timeout` seconds at most, or to be woken; False when closed and
        empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._closed or self._woken, timeout)
            self._woken = False
            return bool(self._entries) or not self._closed

    def take(self) -> list[Entry]:
        """The next batch; nothing where there is no work.

        Of the key whose turn it is, the oldest entry of the earliest turn is always in it, so that
        nothing starves. Its company are entries near to it in length: see `choose`.
        """
        with self._changed:
            if not self._entries:
                return []
            batch = choose(self._in_turn(), self.budget)
            self._turn = max(self._turn, batch[0].turn)
            chosen = set(map(id, batch))
            self._entries = [entry for entry in self._entries if id(entry) not in chosen]
            return batch

    def _in_turn(self) -> list[Entry]:
        """The entries, first the one that may not wait any longer."""
        party = self._turns.next(dict.fromkeys(entry.party for entry in self._entries))
        first = next(entry for entry in self._entries if entry.party == party)
        if first is self._entries[0]:
            return self._entries
        return [first, *(entry for entry in self._entries if entry is not first)]

    def __len__(self) -> int:
        return len(self._entries)


class Turns:
    """Whose turn it is, of the parties that wait: of the one that has had none for longest."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._number = 0

    def next(self, waiting: Collection[str]) -> str:
        """Of at least one."""
        self._taken = {party: at for party, at in self._taken.items() if party in waiting}
        chosen = min(waiting, key=lambda party: self._taken.get(party, 0))
        self._number += 1
        self._taken[chosen] = self._number
        return chosen


def choose(entries: Sequence[Entry], budget: int) -> list[Entry]:
    """The first entry's batch, of which it is the first, where those nearest to it in length are
    split so that all their passes together take the least: within the budget, none stretched by
    padding.
    """
    oldest = entries[0]
    fixed = oldest.fixed_cost
    if oldest.sample.alone or cost(oldest.length, fixed) * 2 > budget:
        return [oldest]
    able = [entry for entry in entries[1:] if entry.key == oldest.key and not entry.sample.alone]
    able.sort(key=lambda entry: abs(entry.length - oldest.length))
    # Stable: of one length, the oldest comes first.
    near = sorted([oldest, *able[:_NEAR]], key=lambda entry: entry.length)
    costs = [cost(entry.length, fixed) for entry in near]
    at = next(place for place, entry in enumerate(near) if entry is oldest)
    batch = next(one for one in split(costs, budget) if at in one)
    return [oldest, *(near[place] for place in batch if place != at)]


def split(costs: Sequence[int], budget: int) -> list[range]:
    """Batches of samples next to each other, whose passes take the least time in all.

    A pass of n padded tokens takes as long as n tokens and what it costs to start (see
    `_STARTS_A_BUDGET`), so neither the fewest passes nor the least padding is the best.

    Args:
        costs: of samples, each in padded tokens if it were the longest, in rising order.
    """
    start = budget / _STARTS_A_BUDGET
    least, begins = [0.0], [0]
    for end in range(1, len(costs) + 1):
        longest = costs[end - 1]
        best, found = math.inf, end - 1
        for begin in range(end - 1, -1, -1):
            rows = end - begin
            is_stretched = start + longest > STRETCH * (start + costs[begin])
            if rows > 1 and (is_stretched or rows * longest > budget):
                break
            passes = least[begin] + start + rows * longest
            if passes < best:
                best, found = passes, begin
        least.append(best)
        begins.append(found)
    batches: list[range] = []
    end = len(costs)
    while end:
        batches.append(range(begins[end], end))
        end = begins[end]
    return batches
