"""Starts, inspects, suspends, resumes and ends processes."""

import contextlib
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

MEMORY_SAMPLE_S = 2.0
"""Seconds between two samples of memory. A sample of 3 GiB takes the kernel some 20 ms."""


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process and its children in seconds."""
    return sum(own_cpu_seconds(process.pid) for process in tree(pid))


def own_cpu_seconds(pid: int) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0


def exact_cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process and its ended children in seconds.

    The kernel counts in nanoseconds here, and in ticks of 10 ms elsewhere. Returns 0.0 for an ended
    process.
    """
    # Linux derives the clock of a process from its id (`clock_getcpuclockid`).
    clock = (~pid << 3) | 2
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        ended = psutil.Process(pid).cpu_times()
        return time.clock_gettime(clock) + ended.children_user + ended.children_system
    return 0.0


def proportional_bytes(pid: int) -> int:
    """Returns the proportional set size of a process and its children.

    Each process counts its share of the pages that several processes use.
    """
    size = 0
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            size += process.memory_full_info().pss
    return size


class PeakMemory:
    """Samples the proportional set size of a process and its children during a block."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.peak_bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._sampling = self._thread.submit(self._sample)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.shutdown()
        self._sampling.result()

    def _sample(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(MEMORY_SAMPLE_S)
            self.peak_bytes = max(self.peak_bytes, proportional_bytes(self._pid))


ENGINE_HOST = "stoker.replica.host"
"""Module that the engine host and its forks run."""
SERVER, WORKERS, HOST, REPLICAS, OTHERS = (
    *("server", "HTTP workers", "engine host", "replicas"),
    "other processes",
)
"""Parts of a running Stoker server."""


def parts_of(pid: int) -> dict[str, list[int]]:
    """Maps each part of a Stoker server to the ids of its processes.

    Args:
        pid: the server's process, or that of a node.
    """
    parts: dict[str, list[int]] = {part: [] for part in (SERVER, WORKERS, HOST, REPLICAS, OTHERS)}
    processes = tree(pid)
    commands: dict[int, list[str]] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            commands[process.pid] = process.cmdline()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            part = _part(process.pid, process.ppid(), pid, commands)
            parts[part].append(process.pid)
    return parts


def _part(pid: int, parent: int, server: int, commands: Mapping[int, Sequence[str]]) -> str:
    command = commands.get(pid, ())
    if pid == server:
        return SERVER
    if ENGINE_HOST in command:
        # Replicas are forks of the engine host.
        return REPLICAS if ENGINE_HOST in commands.get(parent, ()) else HOST
    # The worker host is a fork of the server, and workers are its forks.
    return WORKERS if command and command == commands.get(server) else OTHERS


ENGINE_THREADS = "engine"
"""Name of the replicas' engine thread, which its worker threads inherit."""


def cpu_seconds_by_part(pid: int) -> Counter[str]:
    """Returns the processor time of a Stoker server: its gateway, its replicas' engines, and the
    rest of the replicas.
    """
    seconds: Counter[str] = Counter()
    for process in tree(pid):
        if process.pid == pid:
            seconds["gateway"] += own_cpu_seconds(pid)
            continue
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            for thread in process.threads():
                name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip()
                part = "engine" if name == ENGINE_THREADS else "beside the engine"
                seconds[part] += thread.user_time + thread.system_time
    return seconds


def suspend(pid: int) -> None:
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()


@contextlib.contextmanager
def awake(pid: int) -> Generator[None]:
    """Resumes a suspended peer for the duration of its measurement."""
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    try:
        yield
    finally:
        suspend(pid)


def end(pid: int) -> None:
    """Kills a peer and its children."""
    processes = tree(pid)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


@contextlib.contextmanager
def child(command: Sequence[str | Path], **options: Any) -> Generator["subprocess.Popen[Any]"]:
    """Starts a process, and kills it with all its children at the end of the block.

    It has a separate session, because the kernel may distribute processor time by session.
    """
    process: subprocess.Popen[Any] = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        end(process.pid)
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
