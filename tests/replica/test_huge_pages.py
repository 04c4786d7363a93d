"""Moves memory to huge pages in a separate process, if the kernel can."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.replica import huge_pages

_PROGRAM = """
import os
from pathlib import Path
from stoker.replica import huge_pages

content = [bytearray(b"x" * 1000) for _ in range(30_000)]
for _ in huge_pages.collapse():
    pass
huge = next(
    int(line.split()[1])
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
    if line.startswith("AnonHugePages:")
)
pid = os.fork()
if not pid:
    content[0][0] = 0
    os._exit(all(part == b"x" * 1000 for part in content[1:]) - 1)
_, status = os.waitpid(pid, 0)
assert content[0][0] == ord("x")
print(status, huge)
"""


def kernel() -> tuple[int, ...]:
    numbers = Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2]
    return tuple(int(number) for number in numbers)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no such file of Linux")
def test_a_fork_sees_the_same_memory():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    status, huge_kib = map(int, done.stdout.split())
    assert status == 0
    if kernel() >= (6, 1) and Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert huge_kib > 0


class Collapses(list[int]):
    """Counts the moves of memory, and how many pieces each moved."""

    def __call__(self) -> Iterator[None]:
        self.append(0)
        for _ in range(3):
            self[-1] += 1
            yield


@pytest.fixture
def collapses(monkeypatch: pytest.MonkeyPatch) -> Collapses:
    counted = Collapses()
    monkeypatch.setattr(huge_pages, "collapse", counted)
    return counted


def test_memory_moves_in_a_quiet_moment_without_children(collapses: Collapses):
    read, _write = os.pipe()
    pages = huge_pages.QuietCollapse(stop_at=read)
    for _ in range(huge_pages.QUIET_ROUNDS - 1):
        pages.rest(has_children=False)
    pages.rest(has_children=True)
    assert collapses == []
    for _ in range(2 * huge_pages.QUIET_ROUNDS):
        pages.rest(has_children=False)
    assert collapses == [3]


def test_a_command_stops_the_move(collapses: Collapses):
    read, write = os.pipe()
    os.write(write, b"x")
    pages = huge_pages.QuietCollapse(stop_at=read)
    for _ in range(huge_pages.QUIET_ROUNDS):
        pages.rest(has_children=False)
    assert collapses == [1]
