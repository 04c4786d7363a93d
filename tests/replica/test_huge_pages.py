"""Moves memory to huge pages in a separate process, if the kernel can."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os
from pathlib import Path
from stoker.replica import huge_pages

content = [bytearray(b"x" * 1000) for _ in range(30_000)]
huge_pages.collapse()
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
