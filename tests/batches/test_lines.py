"""Lines of an input file, and ranges of their numbers."""

import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.workloads.batches.lines import InputLine, LineSplitter
from stoker.workloads.batches.parts import ranges

MIB = 1 << 20


def split(blocks: list[bytes], most_bytes: int) -> list[InputLine]:
    splitter = LineSplitter(most_bytes)
    lines = [line for block in blocks for line in splitter.add(block)]
    return [*lines, *splitter.end()]


@given(st.lists(st.text("ab \n").map(str.encode)), st.integers(1, 6))
def test_are_the_same_for_any_blocks(blocks: list[bytes], most_bytes: int) -> None:
    expected = [
        InputLine(number, line if len(line) <= most_bytes else None)
        for number, line in enumerate(b"".join(blocks).split(b"\n"), 1)
        if len(line) > most_bytes or line.strip()
    ]
    assert split(blocks, most_bytes) == expected


def test_a_line_of_gigabytes_is_not_held() -> None:
    splitter, block = LineSplitter(4 * MIB), b"x" * MIB
    tracemalloc.start()
    try:
        for _ in range(2048):
            assert splitter.add(block) == []
        assert splitter.add(b"\nshort\n") == [InputLine(1, None), InputLine(2, b"short")]
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


@given(st.sets(st.integers(1, 60)))
def test_ranges_contain_the_same_numbers(numbers: set[int]) -> None:
    found = ranges(sorted(numbers))
    assert [n for first, last in found for n in range(first, last + 1)] == sorted(numbers)
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(found))
