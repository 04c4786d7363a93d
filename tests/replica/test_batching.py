import itertools
import threading
from collections.abc import Hashable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.models.stages.base import Sample
from stoker.replica import batching
from stoker.replica.batch_choice import (
    DEVICE_STARTS_A_BUDGET,
    STRETCH,
    QueuedSample,
    bucket,
    choose,
    choose_packed,
    is_one_batch,
    split,
)
from stoker.replica.batching import BatchQueue
from tests.replica.preparation.support import wait_until


def entry(
    length: int, request_id: int = 1, fixed_cost: int = 0, key: Hashable = ()
) -> QueuedSample:
    sample = Sample({"input_ids": torch.zeros((1, length), dtype=torch.long)})
    return QueuedSample(
        request_id, 0, 0, sample, None, length=length, fixed_cost=fixed_cost, key=key
    )


class TestBucket:
    @given(st.integers(1, 10_000))
    def test_never_cuts_and_wastes_little(self, length: int) -> None:
        assert length <= bucket(length) < length + 32

    def test_repeats(self) -> None:
        assert {bucket(length) for length in range(1, 65)} == set(range(8, 65, 8))


class TestChoose:
    @given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 4096))
    def test_keeps_the_oldest_and_the_budget(self, lengths: list[int], budget: int) -> None:
        entries = [entry(length) for length in lengths]
        batch = choose(entries, budget)
        assert batch[0] is entries[0]
        padded = max(bucket(item.length) for item in batch) * len(batch)
        assert len(batch) == 1 or padded <= budget

    def test_takes_the_nearest_in_length(self) -> None:
        entries = [entry(16), entry(250), entry(15), entry(16)]
        assert [item.length for item in choose(entries, 48)] == [16, 15, 16]

    def test_a_short_one_does_not_pay_for_a_long_one(self) -> None:
        entries = [entry(16), entry(256), entry(40), entry(24)]
        assert [item.length for item in choose(entries, 512)] == [16, 24, 40]
        assert [item.length for item in choose(entries[1:], 512)] == [256]

    def test_what_is_cheap_beside_the_start_of_a_pass_is_company(self) -> None:
        """Small inputs of a tiny model share a batch, because its passes take the same time for any
        of them.
        """
        entries = [entry(8), entry(60), entry(120)]
        assert [item.length for item in choose(entries, 4096)] == [8, 60, 120]
        assert [item.length for item in choose(entries, 256)] == [8]

    @given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 4096))
    def test_no_sample_is_stretched_beyond_the_limit(self, lengths: list[int], budget: int) -> None:
        padded = [bucket(item.length) for item in choose([entry(n) for n in lengths], budget)]
        start = budget / 10
        assert start + max(padded) <= STRETCH * (start + min(padded))

    def test_padding_is_worth_less_than_another_pass(self) -> None:
        entries = [entry(length) for length in (3, *[48] * 4, *[3] * 3)]
        assert [item.length for item in choose(entries[:5], 512)] == [3]
        assert [item.length for item in choose(entries, 512)] == [3] * 4
        assert [item.length for item in choose(entries[1:], 512)] == [48] * 4
        assert [item.length for item in choose([entry(24), entry(48)], 512)] == [24, 48]

    @given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(1, 400))
    def test_no_other_split_is_faster(self, units: list[int], budget: int) -> None:
        costs = sorted(8 * one for one in units)
        start = budget / 14

        def fits(rows: range) -> bool:
            is_near = start + costs[rows[-1]] <= STRETCH * (start + costs[rows[0]])
            return len(rows) == 1 or (is_near and len(rows) * costs[rows[-1]] <= budget)

        def taken(batches: list[range]) -> float:
            return sum(start + len(rows) * costs[rows[-1]] for rows in batches)

        best = split(costs, budget)[::-1]
        assert [place for rows in best for place in rows] == [*range(len(costs))]
        assert all(map(fits, best))
        other_splits = (
            [range(begin, end) for begin, end in itertools.pairwise((0, *cuts, len(costs)))]
            for count in range(len(costs))
            for cuts in itertools.combinations(range(1, len(costs)), count)
        )
        least = min(taken(one) for one in other_splits if all(map(fits, one)))
        assert taken(best) == pytest.approx(least)

    def test_other_keys_wait(self) -> None:
        entries = [entry(16, key="a"), entry(16, key="b"), entry(16, key="a")]
        assert choose(entries, 512) == [entries[0], entries[2]]

    def test_counts_what_is_not_padded(self) -> None:
        entries = [entry(0, fixed_cost=100) for _ in range(5)]
        assert len(choose(entries, 330)) == 3

    def test_alone(self) -> None:
        lone, *rest = entry(16), entry(16), entry(16)
        lone.sample.alone = True
        assert choose([lone, *rest], 512) == [lone]
        assert choose([*rest, lone], 512) == rest


class TestChoosePacked:
    @given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 4096))
    def test_keeps_the_oldest_and_the_budget(self, lengths: list[int], budget: int) -> None:
        entries = [entry(length) for length in lengths]
        batch = choose_packed(entries, budget)
        assert batch[0] is entries[0]
        assert len(batch) == 1 or sum(item.length for item in batch) <= budget

    def test_lengths_do_not_matter(self) -> None:
        entries = [entry(16), entry(256), entry(40), entry(24)]
        assert len(choose_packed(entries, 336)) == 4

    def test_takes_the_nearest_in_length(self) -> None:
        """Embeddings and heads still compute padding."""
        entries = [entry(16), entry(250), entry(15), entry(90)]
        assert [item.length for item in choose_packed(entries, 280)] == [16, 15, 90]

    def test_rows_are_not_padded_without_limit(self) -> None:
        entries = [entry(1) for _ in range(40)]
        batch = choose_packed([*entries, entry(400)], 512)
        assert len(batch) == 40
        assert len(choose_packed([*entries[:8], entry(400)], 512)) == 9

    def test_one_that_does_not_fit_keeps_no_other_out(self) -> None:
        entries = [entry(256), entry(300), entry(1), *(entry(1) for _ in range(20))]
        assert len(choose_packed(entries, 300)) == 9

    def test_other_keys_and_lone_samples_wait(self) -> None:
        entries = [entry(16, key="a"), entry(16, key="b"), entry(16, key="a")]
        assert choose_packed(entries, 512) == [entries[0], entries[2]]
        lone = entry(16)
        lone.sample.alone = True
        assert choose_packed([lone, entry(16)], 512) == [lone]
        assert len(choose_packed([entry(16), lone], 512)) == 1

    def test_counts_what_is_not_padded(self) -> None:
        entries = [entry(0, fixed_cost=100) for _ in range(5)]
        assert len(choose_packed(entries, 330)) == 3

    def test_the_queue_selects_as_its_engine_computes(self) -> None:
        for is_packed, size in ((False, 1), (True, 2)):
            queue = BatchQueue(512, is_packed=is_packed)
            queue.put([entry(16)])
            queue.put([entry(256)])
            assert len(queue.take()) == size


class TestBatchQueue:
    def test_dropped_requests_leave(self) -> None:
        queue = BatchQueue(512)
        queue.put([entry(8, request_id=1), entry(8, request_id=2)])
        assert queue.drop(1) == 1
        assert [item.request_id for item in queue.take()] == [2]

    def test_waits_for_work(self) -> None:
        queue = BatchQueue(512)
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(queue.wait()))
        thread.start()
        queue.put([entry(8)])
        thread.join(10)
        assert results == [True]
        assert len(queue.take()) == 1

    def test_gathers_entries_that_follow_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batching, "MOST_GATHERING_S", 60)
        queue = BatchQueue(512)
        sizes: list[int] = []

        def take() -> None:
            while queue.wait():
                sizes.append(len(queue.take()))

        thread = threading.Thread(target=take)
        thread.start()
        for _ in range(3):
            queue.put([entry(8)], more_follow=True)
        assert not sizes
        queue.announce()
        wait_until(lambda: sizes == [3])
        # A full batch, and an entry without followers, are taken at once.
        for _ in range(64):
            queue.put([entry(8)], more_follow=True)
        wait_until(lambda: sizes == [3, 64])
        queue.put([entry(8)], more_follow=True)
        queue.put([entry(8)])
        wait_until(lambda: sum(sizes) == 69)
        queue.close()
        thread.join(10)

    def test_gathers_only_for_a_moment(self) -> None:
        queue = BatchQueue(512)
        queue.put([entry(8)], more_follow=True)
        assert queue.wait()
        assert len(queue.take()) == 1

    def test_woken_it_comes_back_with_nothing(self) -> None:
        queue = BatchQueue(512)
        queue.wake()
        assert queue.wait()
        assert queue.take() == []
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(queue.wait()))
        thread.start()
        queue.wake()
        thread.join(10)
        assert results == [True]
        assert queue.take() == []

    def test_closes_when_empty(self) -> None:
        queue = BatchQueue(512)
        queue.put([entry(8)])
        queue.close()
        assert queue.wait()
        assert queue.take()
        assert not queue.wait()

    def test_nothing_starves(self) -> None:
        """An entry unlike all others is served as soon as it is the oldest."""
        queue = BatchQueue(64)
        queue.put([entry(8) for _ in range(8)] + [entry(60)] + [entry(8) for _ in range(8)])
        lengths = [[item.length for item in queue.take()] for _ in range(3)]
        assert lengths[1][0] in (8, 60)
        assert any(60 in batch for batch in lengths)

    def test_inputs_of_many_samples_take_turns(self) -> None:
        queue = BatchQueue(budget=1)
        queue.put([entry(8, 1) for _ in range(4)])
        batches = [queue.take()]
        queue.put([entry(8, 2) for _ in range(2)])
        queue.put([entry(8, 3)])
        batches += [queue.take() for _ in range(6)]
        # The first request's fourth input arrived before the later requests, so it is not delayed.
        assert [batch[0].request_id for batch in batches if batch] == [1, 1, 2, 3, 1, 2, 1]

    def test_newcomers_put_nothing_off_for_ever(self) -> None:
        queue = BatchQueue(budget=1)
        queue.put([entry(8, 1) for _ in range(3)])
        request_ids: list[int] = []
        for _ in range(6):
            queue.put([entry(8, 2)])
            request_ids += [item.request_id for item in queue.take()]
        assert request_ids.count(1) == 3


class TestKeys:
    def taken(self, queue: BatchQueue, count: int) -> list[int]:
        request_ids: list[int] = []
        for _ in range(count):
            request_ids += [item.request_id for item in queue.take()]
        return request_ids

    def test_one_request_does_not_wait_for_a_thousand_of_another_key(self) -> None:
        queue = BatchQueue(8)
        for number in range(1000):
            queue.put([entry(8, number)], "flood")
        assert self.taken(queue, 3) == [0, 1, 2]
        queue.put([entry(8, 5000)], "one")
        queue.put([entry(8, 5001)], "one")
        assert self.taken(queue, 4) == [5000, 3, 5001, 4]
        assert self.taken(queue, 995) == [*range(5, 1000)]

    @given(st.lists(st.sampled_from("abc"), max_size=60))
    def test_each_key_gets_its_own_in_order_and_none_is_behind_by_more_than_one(
        self, keys: list[str]
    ) -> None:
        queue = BatchQueue(8)
        for number, key in enumerate(keys):
            queue.put([entry(8, number)], key)
        order = [keys[number] for number in self.taken(queue, len(keys))]
        expected = {key: keys.count(key) for key in set(keys)}
        got = dict.fromkeys(expected, 0)
        for key in order:
            got[key] += 1
            for other, count in expected.items():
                assert got[key] <= got[other] + 1 or got[other] == count
        assert got == expected


class TestOneBatch:
    @given(
        st.lists(st.integers(1, 40).map(lambda step: 8 * step), min_size=1, max_size=24),
        st.integers(8, 8192),
        st.sampled_from([2.0, 3.0, 14.0]),
    )
    def test_is_what_the_split_returns(self, costs: list[int], budget: int, starts: float) -> None:
        costs.sort()
        if is_one_batch(costs, budget, budget / starts):
            assert split(costs, budget, starts) == [range(len(costs))]

    def test_a_large_budget_takes_more_entries_than_a_split_examines(self) -> None:
        entries = [entry(16) for _ in range(300)]
        assert len(choose(entries, 16 * 200, DEVICE_STARTS_A_BUDGET)) == 200
        assert len(choose(entries, 16 * 128)) == 128

    def test_further_entries_make_no_batch_longer_or_stretched(self) -> None:
        entries = [*(entry(16) for _ in range(200)), *(entry(100) for _ in range(50)), entry(1)]
        assert {item.length for item in choose(entries, 1 << 14)} == {16}

    def test_on_a_gpu_padding_is_cheaper_than_another_pass(self) -> None:
        entries = [entry(16), entry(250)]
        assert len(choose(entries, 2048, DEVICE_STARTS_A_BUDGET)) == 2
        assert len(choose(entries, 2048)) == 1


class TestFullBatch:
    def test_entries_count_until_they_are_taken_or_dropped(self) -> None:
        queue = BatchQueue(64)
        queue.put([entry(16, request_id=1), entry(16, request_id=2), entry(16, request_id=2)])
        assert not queue.wait_until_full(0)
        assert queue.wait_for_entries(0)
        queue.put([entry(10, request_id=3)])
        assert queue.wait_until_full(0)
        queue.drop(2)
        assert not queue.wait_until_full(0)
        queue.put([entry(64)])
        assert queue.wait_until_full(0)
        while queue.take():
            pass
        assert not queue.wait_until_full(0)
        assert not queue.wait_for_entries(0)

    def test_a_closed_queue_is_not_waited_for(self) -> None:
        queue = BatchQueue(64)
        queue.close()
        assert queue.wait_until_full(20)
