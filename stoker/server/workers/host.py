"""Worker host: a single-threaded copy of the server, forked at its start, that forks workers.

A fork shares the memory of all imported modules. The server itself cannot fork later, because it
has threads.
"""

import contextlib
import os
import signal
import socket
import struct

from stoker import sandbox
from stoker.base.config import Settings
from stoker.server.workers import process

_CORES_PER_WORKER = 4
"""A worker and its share of the server and the replicas need this many cores."""
_MOST_BY_DEFAULT = 8
_START = struct.Struct("<I")
"""Message that asks for a worker: its number."""
_GRACE_S = 3
"""Seconds for which workers may end by themselves after the server is gone."""


def worker_count(settings: Settings) -> int:
    """Returns the number of workers. 1 means that the server needs none."""
    quarter = len(os.sched_getaffinity(0)) // _CORES_PER_WORKER
    return settings.workers or max(1, min(_MOST_BY_DEFAULT, quarter))


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

    def start(self, number: int) -> tuple[socket.socket, socket.socket]:
        """Starts a worker. Returns the sockets for messages and for passing connections.

        Raises `OSError` if the host is gone.
        """
        channel, its_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        passing, its_passing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_channel, its_passing:
            descriptors = [its_channel.fileno(), its_passing.fileno()]
            socket.send_fds(self._control, [_START.pack(number)], descriptors)
        channel.setblocking(False)
        passing.setblocking(False)
        return channel, passing

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
        data, descriptors, _, _ = socket.recv_fds(control, _START.size, 2)
        if not data:
            break
        [number] = _START.unpack(data)
        channel, passing = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        try:
            pid = os.fork()
        except OSError:
            # The server sees the closed sockets and asks again later.
            pid = -1
        if pid == 0:
            _work(number, settings, control, channel, passing)
        channel.close()
        passing.close()
    # Workers that have lost the server end by themselves. The others end with this process.
    signal.alarm(_GRACE_S)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, 0)


def _work(
    number: int,
    settings: Settings,
    control: socket.socket,
    channel: socket.socket,
    passing: socket.socket,
) -> None:
    status = 1
    try:
        sandbox.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        process.run(number, settings, channel, passing)
        status = 0
    finally:
        os._exit(status)
