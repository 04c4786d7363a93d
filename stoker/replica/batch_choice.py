"""Chooses the samples of a batch among waiting ones: the least total time of all passes.

The budget counts *padded* tokens: a batch costs its longest sample times its size. If the engine
packs its batches, the budget counts only real tokens. Pixels and sound are counted as tokens, too.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from stoker.base.fairness import Tier
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

_MOST_PADDING = 8
"""Maximum ratio of a packed batch's padded tokens to the budget. Embeddings and heads compute the
padding too.
"""
_NEAR, NEAR_PACKED = 127, 511
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
    tier: Tier = Tier.DEFAULT
    """Tier of the entry's request, assigned by the queue."""
    cost: int = field(init=False)
    """Cost in padded tokens if the entry is the longest of its batch."""

    def __post_init__(self) -> None:
        self.cost = cost(self.length, self.fixed_cost)


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
    able = nearest(entries)
    near = sorted([oldest, *able[:_NEAR]], key=lambda entry: entry.length)
    costs = [entry.cost for entry in near]
    if is_one_batch(costs, budget, budget / starts):
        rest = fitting(able[_NEAR:], costs, budget)
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
    tokens = longest = tokens_of(entries[0])
    for entry in nearest(entries)[:NEAR_PACKED]:
        own = tokens_of(entry)
        widest = max(longest, own)
        is_wide = (len(batch) + 1) * widest > _MOST_PADDING * budget
        if tokens + own <= budget and not is_wide:
            batch.append(entry)
            tokens, longest = tokens + own, widest
    return batch


def tokens_of(entry: QueuedSample) -> int:
    """Returns the tokens that an engine without padding computes for an entry."""
    return entry.length + entry.fixed_cost


def nearest(entries: Sequence[QueuedSample]) -> list[QueuedSample]:
    """Returns the entries that may share the first entry's batch, nearest in length first."""
    oldest = entries[0]
    able = [entry for entry in entries[1:] if entry.key == oldest.key and not entry.sample.alone]
    # The sort is stable: among equal lengths, the oldest comes first.
    able.sort(key=lambda entry: abs(entry.length - oldest.length))
    return able


def fitting(
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
