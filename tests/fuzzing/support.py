"""Runs the fuzzers: sets the number of examples of a property, counts its results, and limits its
memory.
"""

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
"""Environment variables that tools/fuzz_formats.py sets: the number of examples per property, and
the file for the counts.
"""
NATIVE_MIB = 512
"""Maximum memory in MiB that a native decoder may use for an input of a few kilobytes."""

counts: dict[str, Counter[str]] = {}
"""Numbers of tried, accepted and rejected inputs per property."""


def fuzz(
    *strategies: st.SearchStrategy[Any], examples: int
) -> Callable[[Callable[..., bool]], Callable[..., None]]:
    """Decorates a property that returns for each input whether it was accepted.

    Args:
        examples: Number of inputs in the tests. tools/fuzz_formats.py overrides it.
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
            # The tests use fixed inputs, so that a change does not fail by a new input. The tool
            # searches for new inputs.
            derandomize=many is None,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        return bounded(given(*strategies)(property_))

    return decorate


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    """Generates the positions at which a stream of this length is cut: none, some, or all."""
    anywhere = st.lists(st.integers(0, length), max_size=8).map(sorted)
    return st.just([]) | anywhere | st.just([*range(1, length)])


def pieces(data: Any, at: Sequence[int]) -> list[Any]:
    """Cuts bytes or a text at the positions. Some pieces may be empty."""
    return [data[begin:end] for begin, end in zip([0, *at], [*at, len(data)], strict=True)]


@contextmanager
def python_memory(most: int) -> Iterator[None]:
    """Fails if Python's objects use more than `most` additional bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes were taken, {most} may be"


@contextmanager
def native_memory(data: bytes) -> Iterator[None]:
    """Fails if the process grows by more than `NATIVE_MIB` for an input.

    Under the tool, the input is written to a file first, because a decoder may end the process.
    """
    if tally := os.environ.get(TALLY):
        Path(tally).with_suffix(".input").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown <= NATIVE_MIB, f"{grown} MiB for an input of {len(data)} bytes"
