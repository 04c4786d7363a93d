"""Worker host: a single-threaded copy of the server, forked at its start, that forks workers.

A fork shares the memory of all imported modules. The server itself cannot fork later, because it
has threads.
"""

import contextlib
import faulthandler
import os
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from stoker import sandbox
from stoker.base.config import Settings
from stoker.server.workers import process

_CORES_PER_WORKER = 4
"""A worker and its share of the server and the replicas need this many cores."""
_MOST_BY_DEFAULT = 8
_DESCRIPTORS = 3
_START = struct.Struct("<I")
"""Message that asks for a worker: its number."""
_GRACE_S = 3
"""Seconds for which workers may end by themselves after the server is gone."""


def worker_count(settings: Settings) -> int:
    """Returns the number of workers. 1 means that the server needs none."""
    quarter = len(os.sched_getaffinity(0)) // _CORES_PER_WORKER
    return settings.workers or max(1, min(_MOST_BY_DEFAULT, quarter))


@dataclass(frozen=True)
class StartedWorker:
    """The server's ends of a new worker."""

    channel: socket.socket
    """Socket for messages."""
    passing: socket.socket
    """Socket for passing connections."""
    stack: BinaryIO
    """File in memory to which the worker writes its stack if a signal such as SIGABRT ends it."""


class WorkerHost:
    """The server's side of the worker host."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control = control
        self.pid = pid

    @classmethod
    def fork(cls, settings: Settings) -> "WorkerHost":
        """Forks the host. The calling process must have one thread and no locks on files."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid:
            theirs.close()
            return cls(ours, pid)
        ours.close()
        try:
            _run(settings, theirs)
        finally:
            os._exit(0)

    def start(self, number: int) -> StartedWorker:
        """Starts a worker. Raises `OSError` if the host is gone."""
        channel, its_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        passing, its_passing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack = os.fdopen(os.memfd_create("stack"), "rb", buffering=0)
        with its_channel, its_passing:
            descriptors = [its_channel.fileno(), its_passing.fileno(), stack.fileno()]
            socket.send_fds(self._control, [_START.pack(number)], descriptors)
        channel.setblocking(False)
        passing.setblocking(False)
        return StartedWorker(channel, passing, stack)

    def close(self) -> None:
        """Ends the host."""
        self._control.close()


def _run(settings: Settings, control: socket.socket) -> None:
    sandbox.keep_to_itself()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The kernel reaps workers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _START.size, _DESCRIPTORS)
        if not data:
            break
        [number] = _START.unpack(data)
        try:
            pid = os.fork()
        except OSError:
            # The server sees the closed sockets and asks again later.
            pid = -1
        if pid == 0:
            _work(number, settings, control, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
    # Workers that have lost the server end by themselves. The others end with this process.
    signal.alarm(_GRACE_S)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, 0)


def _work(
    number: int, settings: Settings, control: socket.socket, descriptors: Sequence[int]
) -> None:
    status = 1
    try:
        sandbox.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        channel, passing = (socket.socket(fileno=descriptor) for descriptor in descriptors[:2])
        faulthandler.enable(descriptors[2])
        process.run(number, settings, channel, passing)
        status = 0
    finally:
        os._exit(status)
