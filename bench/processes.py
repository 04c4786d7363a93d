"""The processes of peers: looked at, suspended, woken and ended by their ids."""

import contextlib
import socket
from collections.abc import Generator

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
