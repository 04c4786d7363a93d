"""Cost of reallocating freed memory, in pages that the kernel clears."""

import subprocess
import sys

import pytest

_PASSES = """
import ctypes, resource, threading
from stoker.replica import allocator
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def one_pass():
    pointers = [libc.malloc(4 << 20) for _ in range(8)]
    for pointer in pointers:
        ctypes.memset(pointer, 1, 4 << 20)
    for pointer in pointers:
        libc.free(ctypes.c_void_p(pointer))
def faults():
    one_pass()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        one_pass()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5
def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20
def on_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
"""


def run(code: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", _PASSES + code], capture_output=True, check=True, timeout=60
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("where", ["faults()", "on_thread(faults)"])
def test_what_a_pass_has_freed_is_there_for_the_next_one(where: str) -> None:
    # 32 MiB are 8192 pages.
    [without] = run(f"print({where})")
    [kept] = run(f"allocator.keep_freed(); print({where})")
    assert kept < 800 < without


def test_an_idle_replica_gives_it_back() -> None:
    at_first, after_pass, after_release = run(
        "allocator.keep_freed(); print(resident_mib()); one_pass(); print(resident_mib());"
        "allocator.give_back(); print(resident_mib())"
    )
    assert after_pass - at_first >= 24
    assert after_release - at_first <= 8
