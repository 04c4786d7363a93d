"""Threads of a process that own OpenMP workers, as counted from the process's tasks."""

import subprocess
import sys

import pytest
import torch

from stoker.models.engines import openmp
from stoker.models.engines.openmp import on_passing_thread

_PASS = """
import os, threading, time, torch
from stoker.models.engines.openmp import keep_to_one_core, on_passing_thread
# It starts some of its own for this, that do nothing.
torch.set_num_threads(3)
at_first = len(os.listdir("/proc/self/task"))
def more():
    return len(os.listdir("/proc/self/task")) - at_first
def more_in_the_end():
    # The kernel sees threads go a little later.
    deadline = time.monotonic() + 60
    while more() and time.monotonic() < deadline:
        time.sleep(0.01)
    return more()
def compute():
    torch.set_num_threads(3)
    torch.ones(1_000_000).add_(1)
    return more()
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PASS + code],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return done.stdout.decode().strip()


def test_a_passing_thread_takes_its_workers_with_it() -> None:
    assert run("print(on_passing_thread(compute), more_in_the_end())") == "3 0"


def test_what_computes_on_a_thread_that_stays_keeps_its_workers() -> None:
    # Proves that the other test can observe the workers.
    assert run("print(compute(), more())") == "2 2"


def test_a_thread_that_keeps_to_one_core_has_none() -> None:
    code = """
found = []
def beside():
    keep_to_one_core()
    torch.ones(1_000_000).add_(1)
    found.append(more())
thread = threading.Thread(target=beside)
thread.start()
thread.join()
more_in_the_end()
print(*found, compute())
"""
    # The thread itself counts as one. Later threads keep their workers.
    assert run(code) == "1 2"


def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        on_passing_thread(lambda: 1 // 0)


def threads_of(model: torch.nn.Module) -> int:
    """Returns the number of threads that probe the model, if two would serve it."""

    def enter() -> int:
        openmp.enter_to_probe(model, lambda: torch.set_num_threads(2))
        return torch.get_num_threads()

    return on_passing_thread(enter)


def test_a_small_model_is_probed_on_one_thread() -> None:
    assert threads_of(torch.nn.Linear(8, 8)) == 1


def test_a_large_model_is_probed_on_all_threads() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(openmp.SMALL_BYTES, 1, bias=False)
    assert threads_of(model) == 2
