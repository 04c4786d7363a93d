"""The processes of peers: looked at, suspended, woken and ended by their ids."""

import contextlib
import socket
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import psutil


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Of a process and what it has started."""
    return sum(own_cpu_seconds(process.pid) for process in tree(pid))


def own_cpu_seconds(pid: int) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0


ENGINE_THREADS = "engine"
"""What replicas call the thread of their engine, and so its workers are called."""


def cpu_seconds_by_part(pid: int) -> Counter[str]:
    """Of our server with this id: its gateway, its replicas' engines, and the rest of these."""
    found: Counter[str] = Counter()
    for process in tree(pid):
        if process.pid == pid:
            found["gateway"] += own_cpu_seconds(pid)
            continue
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            for thread in process.threads():
                name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip()
                part = "engine" if name == ENGINE_THREADS else "beside the engine"
                found[part] += thread.user_time + thread.system_time
    return found


def suspend(pid: int) -> None:
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()


@contextlib.contextmanager
def awake(pid: int) -> Generator[None]:
    """Let a suspended peer run for as long as it is measured."""
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    try:
        yield
    finally:
        suspend(pid)


def end(pid: int) -> None:
    """Kill a peer and what it started."""
    processes = tree(pid)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
