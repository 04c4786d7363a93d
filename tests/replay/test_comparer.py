"""Large answers are compared in separate processes and delay no other request."""

import json
import math
import time
from collections.abc import AsyncIterator

import pytest

from stoker.workloads.evaluation.replay import comparer
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.evaluation.replay.comparison import Comparison


@pytest.fixture
async def pool() -> AsyncIterator[Comparer]:
    comparer_pool = Comparer()
    yield comparer_pool
    await comparer_pool.close()


def vectors(count: int, last: float = 0.5) -> bytes:
    numbers = [[0.25, 0.5, 0.125, at / 7] for at in range(count)]
    return json.dumps([*numbers, [1.0, last]]).encode()


@pytest.mark.case(31)
async def test_a_large_answer_is_read_elsewhere(pool: Comparer) -> None:
    """Large answers are compared outside this process, because 15 MB of JSON take a second to parse
    and traverse.
    """
    ours, theirs = vectors(200_000), vectors(200_000, last=0.25)
    assert len(ours) + len(theirs) < comparer.MOST_BYTES
    began = time.process_time()
    comparison = await pool.compare("A", ours, theirs)
    took = time.process_time() - began
    assert (comparison.difference, comparison.unread) == (0.25, 0)
    assert min(comparison.cosines) == pytest.approx(1.125 / math.sqrt(1.25 * 1.0625))
    assert took < 0.4


@pytest.mark.case(31)
async def test_beyond_the_limit_digests_are_compared(pool: Comparer) -> None:
    content = b"x" * comparer.MOST_BYTES
    same, other = [await pool.compare("A", content, content + end) for end in (b"", b"y")]
    assert (same.differs, other.differs) == (False, True)
    assert "only the digest was compared" in same.caution
    assert "only the digest was compared" in other.in_words()


async def test_deep_ones_are_compared_as_a_whole(pool: Comparer) -> None:
    deep = b"[" * 90_000 + b"]" * 90_000
    comparison = await pool.compare("A", deep, deep)
    assert (comparison.texts, comparison.unread) == ([True], 1)


async def test_small_and_large_are_compared_alike(pool: Comparer, monkeypatch) -> None:
    ours, theirs = vectors(20), vectors(20, last=0.4)
    here = await pool.compare("A", ours, theirs)
    event = b"data: " + json.dumps({"choices": [{"index": 0, "text": "a"}]}).encode() + b"\n\n"
    streamed = await pool.compare("A", event, event, is_streamed=True)
    monkeypatch.setattr(comparer, "SMALL_BYTES", 0)
    assert await pool.compare("A", ours, theirs) == here
    assert await pool.compare("A", event, event, is_streamed=True) == streamed
    assert streamed.texts == [True]


def test_merged_they_are_one() -> None:
    pairs = [(b'["a", [1.0, 2.0]]', b'["a", [1.0, 2.5]]'), (b'["b", 1]', b'["c", NaN]')]
    whole, merged = Comparison(), Comparison()
    for pair in pairs:
        whole.add(*pair)
        single = Comparison()
        single.add(*pair)
        merged.merge(single)
    assert math.isnan(merged.difference)
    assert math.isnan(whole.difference)
    assert (merged.texts, merged.cosines) == (whole.texts, whole.cosines)
