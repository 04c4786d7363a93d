"""Replicas of a machine share the bound on preparation processes."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.replica.preparation.permits import Permits

MOST = 3
_OTHER = """
import sys
from stoker.replica.preparation.permits import Permits
permits = Permits(int(sys.argv[1]))
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Other:
    """Another process with the same permits."""

    def __init__(self, permits: Permits) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(permits.descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[permits.descriptor],
        )

    def does(self, call: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"permits.{call}\n")
        self._process.stdin.flush()
        return eval(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def permits() -> Permits:
    return Permits.create()


@pytest.fixture
def other(permits: Permits) -> Iterator[Other]:
    process = Other(permits)
    yield process
    process.close()


def test_permits_are_bounded_for_all(permits: Permits, other: Other) -> None:
    first, second = permits.take(MOST), permits.take(MOST)
    third = other.does(f"take({MOST})")
    assert {first, second, third} == {0, 1, 2}
    assert permits.take(MOST) is None
    assert other.does(f"take({MOST})") is None
    assert first is not None
    permits.give(first)
    assert other.does(f"take({MOST})") == first


def test_permits_of_a_killed_process_are_free(permits: Permits, other: Other) -> None:
    for _ in range(MOST):
        other.does(f"take({MOST})")
    assert permits.take(MOST) is None
    other.close()
    assert permits.take(MOST) == 0


def test_a_process_without_any_is_noticed(permits: Permits, other: Other) -> None:
    for _ in range(MOST):
        permits.take(MOST)
    assert not permits.is_wanted()
    assert other.does(f"take({MOST})") is None
    assert permits.is_wanted()
    permits.give(1)
    assert other.does(f"take({MOST})") == 1
    assert not permits.is_wanted()
    assert other.does(f"take({MOST})") is None
    assert not permits.is_wanted(), "it has one"


def test_a_request_can_be_withdrawn(permits: Permits, other: Other) -> None:
    permits.take(1)
    assert other.does("take(1)") is None
    assert permits.is_wanted()
    other.does("stop_waiting()")
    assert not permits.is_wanted()
