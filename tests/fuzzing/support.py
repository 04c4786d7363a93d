"""How the fuzzers run: how many examples a property has, what it counts, and what it may take."""

import os
import resource
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES, TALLY = "STOKER_FUZZ_EXAMPLES", "STOKER_FUZZ_TALLY"
"""Set by tools/fuzz_formats.py: examples a property, and the file that the counts go to."""
NATIVE_MIB = 512
"""What a decoder outside Python may take for an input of a few kilobytes."""

counts: dict[str, Counter[str]] = {}
"""By property: how many inputs were accepted, and how many refused."""


def fuzz(
    *strategies: st.SearchStrategy[Any], examples: int
) -> Callable[[Callable[..., bool]], Callable[..., None]]:
    """A property that says of each input whether it was accepted.

    examples: in the tests; tools/fuzz_formats.py has as many as it is told.
    """

    def decorate(holds: Callable[..., bool]) -> Callable[..., None]:
        @wraps(holds)
        def property_(*args: Any, **named: Any) -> None:
            count = counts.setdefault(f"{holds.__module__}.{holds.__qualname__}", Counter())
            count["tried"] += 1
            count["accepted" if holds(*args, **named) else "refused"] += 1

        many = os.environ.get(EXAMPLES)
        bounded = settings(
            max_examples=int(many or examples),
            # A change is not to fail by an input that nobody tried before: the tool looks for them.
            derandomize=many is None,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        return bounded(given(*strategies)(property_))

    return decorate


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    """Where a stream of this length is cut: nowhere, anywhere, or everywhere."""
    anywhere = st.lists(st.integers(0, length), max_size=8).map(sorted)
    return st.just([]) | anywhere | st.just([*range(1, length)])


def pieces(data: Any, at: Sequence[int]) -> list[Any]:
    """Bytes or a text, cut there; some of the pieces may be empty."""
    return [data[begin:end] for begin, end in zip([0, *at], [*at, len(data)], strict=True)]


@contextmanager
def python_memory(most: int) -> Iterator[None]:
    """Fail where Python's objects take more bytes than this, beside those that there are."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes were taken, {most} may be"


@contextmanager
def native_memory(data: bytes) -> Iterator[None]:
    """Fail where the process grows by more than `NATIVE_MIB` over an input.

    Under the tool the input is written down before, as a decoder may end the process.
    """
    if tally := os.environ.get(TALLY):
        Path(tally).with_suffix(".input").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown <= NATIVE_MIB, f"{grown} MiB for an input of {len(data)} bytes"
