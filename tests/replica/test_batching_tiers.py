"""Order of samples of different service tiers in the queue of batches."""

import torch

from stoker.base.fairness import MOST_OVERTAKING, Tier
from stoker.models.stages.base import Sample
from stoker.replica.batch_choice import QueuedSample
from stoker.replica.batching import LIVE_S, BatchQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entries(count: int, request: int, length: int = 8) -> list[QueuedSample]:
    return [
        QueuedSample(
            request,
            0,
            place,
            Sample({"input_ids": torch.zeros((1, length), dtype=torch.long)}),
            None,
            length=length,
        )
        for place in range(count)
    ]


def put(queue: BatchQueue, tier: Tier, count: int, request: int, length: int = 8) -> None:
    for entry in entries(count, request, length):
        queue.put([entry], f"key {request}", tier)


def tiers(batch: list[QueuedSample]) -> list[Tier]:
    return [entry.tier for entry in batch]


class TestFlex:
    def test_live_samples_go_first(self) -> None:
        queue = BatchQueue(8)
        put(queue, Tier.FLEX, 3, 1)
        put(queue, Tier.DEFAULT, 2, 2)
        order = [tier for _ in range(5) for tier in tiers(queue.take())]
        assert order == [Tier.DEFAULT] * 2 + [Tier.FLEX] * 3

    def test_joins_a_batch_only_if_it_hardly_prolongs_it(self) -> None:
        # A pass of 20 live samples takes the time of 160 + 1,000 / 14 tokens. A tenth of that is
        # the time of two samples.
        queue = BatchQueue(1000)
        put(queue, Tier.FLEX, 50, 1)
        put(queue, Tier.DEFAULT, 20, 2)
        batch = tiers(queue.take())
        assert batch == [Tier.DEFAULT] * 20 + [Tier.FLEX] * 2

    def test_does_not_make_a_batch_longer(self) -> None:
        queue = BatchQueue(1000)
        put(queue, Tier.FLEX, 5, 1, length=16)
        put(queue, Tier.DEFAULT, 20, 2)
        assert tiers(queue.take()) == [Tier.DEFAULT] * 20

    def test_joins_a_packed_batch_by_its_tokens(self) -> None:
        queue = BatchQueue(1000, is_packed=True)
        put(queue, Tier.FLEX, 50, 1, length=5)
        put(queue, Tier.DEFAULT, 20, 2, length=8)
        batch = tiers(queue.take())
        assert batch == [Tier.DEFAULT] * 20 + [Tier.FLEX] * 4

    def test_fills_the_budget_if_no_live_sample_came(self) -> None:
        queue = BatchQueue(80)
        put(queue, Tier.FLEX, 30, 1)
        assert len(queue.take()) == 10

    def test_passes_are_short_while_live_samples_keep_coming(self) -> None:
        clock = Clock()
        queue = BatchQueue(80, clock=clock)
        put(queue, Tier.FLEX, 30, 1)
        put(queue, Tier.DEFAULT, 2, 2)
        assert tiers(queue.take()) == [Tier.DEFAULT] * 2
        clock.now += LIVE_S - 0.1
        assert len(queue.take()) == 2
        clock.now += 0.2
        assert len(queue.take()) == 10

    def test_a_long_sample_runs_alone_while_live_samples_keep_coming(self) -> None:
        queue = BatchQueue(80, clock=Clock())
        put(queue, Tier.FLEX, 2, 1, length=64)
        put(queue, Tier.DEFAULT, 1, 2)
        assert tiers(queue.take()) == [Tier.DEFAULT]
        assert len(queue.take()) == len(queue.take()) == 1

    def test_a_live_sample_is_not_delayed_by_the_turns_of_keys(self) -> None:
        queue = BatchQueue(8)
        for request in range(5):
            put(queue, Tier.FLEX, 2, request)
        queue.take()
        put(queue, Tier.DEFAULT, 1, 9)
        assert queue.take()[0].request_id == 9


class TestPriority:
    def test_goes_first_and_lets_default_follow(self) -> None:
        queue = BatchQueue(8)
        put(queue, Tier.DEFAULT, 3, 1)
        put(queue, Tier.PRIORITY, 2, 2)
        order = [tier for _ in range(5) for tier in tiers(queue.take())]
        assert order == [Tier.PRIORITY] * 2 + [Tier.DEFAULT] * 3

    def test_default_samples_fill_its_batch(self) -> None:
        queue = BatchQueue(24)
        put(queue, Tier.DEFAULT, 3, 1)
        put(queue, Tier.PRIORITY, 1, 2)
        assert tiers(queue.take()) == [Tier.PRIORITY, Tier.DEFAULT, Tier.DEFAULT]

    def test_does_not_starve_default(self) -> None:
        queue = BatchQueue(8)
        put(queue, Tier.DEFAULT, 2, 1)
        order: list[Tier] = []
        for _ in range(2 * MOST_OVERTAKING + 2):
            put(queue, Tier.PRIORITY, 1, 2)
            order += tiers(queue.take())
        turns = [Tier.PRIORITY] * MOST_OVERTAKING + [Tier.DEFAULT]
        assert order == turns * 2
