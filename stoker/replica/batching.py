"""Which samples go into a forward pass together.

The budget counts *padded* tokens: a batch costs its longest sample times its size; pixels and sound
are counted as so many tokens. There is no wait window: the engine takes what is queued when it
asks, so a lone request never waits for company. Inputs of many samples, such as the sentences of a
text that is spoken, take turns: what comes later waits for one of them, not for all.
"""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.stages.base import Sample, bucket


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


class BatchQueue:
    """Samples waiting for the engine, first those whose turn it is. Thread-safe."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._entries: list[Entry] = []
        self._turn = 0
        """Of what was taken last."""
        self._changed = threading.Condition()
        self._closed = False

    def put(self, entries: Sequence[Entry]) -> None:
        """Add the samples of one input: one a turn, the first in the turn that comes next."""
        with self._changed:
            for turn, entry in enumerate(entries, self._turn + 1):
                entry.turn = turn
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

    def close(self) -> None:
        """`take` returns None once what is queued has been taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, timeout: float | None = None) -> list[Entry] | None:
        """The next batch; [] after `timeout` seconds without work; None when closed and empty.

        The oldest entry of the earliest turn is always in it, so that nothing starves. Its company
        are the entries nearest to it in length, as long as the padded batch stays within the
        budget.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._closed, timeout)
            if not self._entries:
                return None if self._closed else []
            batch = choose(self._entries, self.budget)
            self._turn = batch[0].turn
            chosen = set(map(id, batch))
            self._entries = [entry for entry in self._entries if id(entry) not in chosen]
            return batch

    def __len__(self) -> int:
        return len(self._entries)


def choose(entries: Sequence[Entry], budget: int) -> list[Entry]:
    """The first entry and those nearest to it in length that fit the budget with it."""
    oldest = entries[0]
    if oldest.sample.alone or cost(oldest.length, oldest.fixed_cost) * 2 > budget:
        return [oldest]
    others = [entry for entry in entries[1:] if entry.key == oldest.key and not entry.sample.alone]
    others.sort(key=lambda entry: abs(entry.length - oldest.length))
    batch, longest = [oldest], oldest.length
    for entry in others:
        longer = max(longest, entry.length)
        if cost(longer, oldest.fixed_cost) * (len(batch) + 1) > budget:
            break
        batch.append(entry)
        longest = longer
    return batch
