"""Samples the stacks of a process at its full speed, and counts each thread's processor time."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from bench.path_stages import ENGINE_THREADS, Thread
from bench.peers.environments import python

RATE_HZ = 149
"""Not a divisor of a period of the server's own timers."""
ATTACH_S = 0.7
"""Time in seconds that the profiler takes to begin."""
_SAMPLER, _SERVING, _ENGINE = 5, 2, 1
"""Real-time priorities. The engine's threads spin, and must not keep a core from the others."""


@contextlib.contextmanager
def undisturbed(pid: int) -> Generator[bool]:
    """Runs a process ahead of all others, so that it never waits for a core.

    A sampler cannot tell a thread that waits for a core from one that runs. Yields False if the
    system does not permit it.
    """
    is_permitted = _schedule(pid, is_first=True)
    try:
        yield is_permitted
    finally:
        _schedule(pid, is_first=False)


def _schedule(pid: int, *, is_first: bool) -> bool:
    if not hasattr(os, "sched_setscheduler"):
        return False
    try:
        for number, name in _names(pid).items():
            priority = _ENGINE if name == ENGINE_THREADS else _SERVING
            policy, level = (os.SCHED_FIFO, priority) if is_first else (os.SCHED_OTHER, 0)
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(number, policy, os.sched_param(level))
    except PermissionError:
        return False
    return True


def profile(pid: int, work: Callable[[], object], seconds: int, folder: Path) -> str:
    """Samples a process for `seconds` while `work` runs, which must take longer.

    Returns the samples as py-spy writes them. Raises `NotMadeError` if its environment is missing,
    and `RuntimeError` if it fails.
    """
    path = folder / f"{pid}.folded"
    command = [
        *(python("py-spy").parent / "py-spy", "record", "--pid", str(pid), "--output", path),
        *("--format", "raw", "--threads", "--nolineno", "--full-filenames"),
        *("--rate", str(RATE_HZ), "--duration", str(seconds)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sampler:
        with contextlib.suppress(PermissionError, AttributeError):
            os.sched_setscheduler(sampler.pid, os.SCHED_FIFO, os.sched_param(_SAMPLER))
        time.sleep(ATTACH_S)
        work()
        output, _ = sampler.communicate(timeout=seconds + 30)
    if sampler.returncode:
        raise RuntimeError(f"the profiler failed: {output.decode()[-500:]}")
    return path.read_text()


def threads_since(pid: int, before: Mapping[int, float]) -> dict[int, Thread]:
    """Returns the threads with their processor time since `before`, an earlier `cpu_seconds`."""
    names = _names(pid)
    return {
        number: Thread(names.get(number, ""), spent - before.get(number, 0.0))
        for number, spent in cpu_seconds(pid).items()
    }


def cpu_seconds(pid: int) -> dict[int, float]:
    """Returns the processor time of each thread of a process in seconds."""
    seconds: dict[int, float] = {}
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            seconds[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def _names(pid: int) -> dict[int, str]:
    """Returns the name in the kernel of each thread."""
    names: dict[int, str] = {}
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            names[int(task.name)] = (task / "comm").read_text().strip()
    return names


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())
