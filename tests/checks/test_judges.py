"""A caller's schemas are compiled and applied in processes that the kernel ends."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from stoker.base.errors import InvalidRequestError
from stoker.workloads.evaluation.checks import judges
from stoker.workloads.evaluation.checks.judges import Judges
from tests.checks.support import doubling

ENDLESS = {"json_schema": doubling(64, by_anchors=True)}


@pytest.fixture
async def pool() -> AsyncIterator[Judges]:
    judge_pool = Judges()
    yield judge_pool
    await judge_pool.close()


async def longest_gap() -> float:
    """Returns the longest time in seconds in which this event loop was blocked.

    Cancel it to end.
    """
    longest = 0.0
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            longest = max(longest, time.perf_counter() - before)
    except asyncio.CancelledError:
        return longest


@pytest.mark.case(27)
async def test_an_endless_schema_fails_its_check_and_holds_nobody(pool: Judges) -> None:
    watch = asyncio.create_task(longest_gap())
    endless = asyncio.create_task(pool.failing("A", ENDLESS, b"[1]", is_written=False))
    # Another account's check is judged in the meantime.
    assert await pool.failing("B", {"equal": [1]}, b"[1]", is_written=False) == ""
    assert not endless.done()
    assert "longer than 2 s" in await endless
    watch.cancel()
    assert await watch < 1.5
    # The next check runs in another process.
    assert "at the whole" in await pool.failing(
        "A", {"json_schema": {"type": "object"}}, b"[1]", is_written=False
    )


async def test_schemas_are_refused_by_their_places(pool: Judges) -> None:
    fine, bad = {"type": "array"}, doubling(64)
    await pool.check_schemas("A", {"one": fine, "two": doubling(10)})
    with pytest.raises(InvalidRequestError, match="'three' takes more than") as caught:
        await pool.check_schemas("A", {"one": fine, "three": bad})
    assert caught.value.param == "three"


async def test_an_answer_has_a_largest_size(pool: Judges) -> None:
    content = b"[" + b"1," * (judges.MOST_BYTES // 2) + b"1]"
    assert "reads at most" in await pool.failing("A", {"equal": 1}, content, is_written=False)
    # The check expects only the status, and the answer has it.
    assert await pool.failing("A", {"status": 200}, content, is_written=False) == ""


async def test_a_deep_answer_fails_its_check(pool: Judges) -> None:
    content = b"[" * 100_000 + b"]" * 100_000
    assert "too deep" in await pool.failing("A", {"equal": 1}, content, is_written=False)
