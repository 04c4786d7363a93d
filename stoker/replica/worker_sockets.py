"""Sockets between the engine host and its prepared workers.

A worker sends `READY`, or the reason that it has no context. The host sends a specification and the
replica's log file as open files. The worker sends `TAKEN` once it can only fail in ways in which a
new process would fail, too.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from stoker.wire.host_messages import WorkerReport
from stoker.wire.protocol import ReplicaSpec

READY, TAKEN = b"ready", b"taken"
_MOST_BYTES = 4096
_FILES = 2
"""The specification and the log file. A specification may be too large for a message."""


def receive(channel: socket.socket) -> tuple[bytes, int] | None:
    """Returns a specification in msgpack, and the descriptor of the log file.

    None if the host has closed the socket.
    """
    data, files, _, _ = socket.recv_fds(channel, 1, _FILES)
    if not data or len(files) != _FILES:
        return None
    content, log_descriptor = files
    with os.fdopen(content, "rb") as file:
        return file.read(), log_descriptor


@dataclass
class _Waiting:
    id: str
    channel: socket.socket
    spec: ReplicaSpec | None = None
    """Specification that was sent and is not taken yet."""


class WorkerSockets:
    """The host's ends of the sockets."""

    def __init__(self) -> None:
        self._workers: dict[int, _Waiting] = {}
        """Maps a descriptor to its worker."""

    def __iter__(self) -> Iterator[int]:
        return iter([*self._workers])

    def add(self, worker_id: str) -> socket.socket:
        """Returns the other end of a new worker's socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._workers[ours.fileno()] = _Waiting(worker_id, ours)
        return theirs

    def close_all(self) -> None:
        """Closes the host's ends in a fork."""
        for worker in self._workers.values():
            worker.channel.close()

    def assign(self, worker_id: str, spec: ReplicaSpec, open_log: Callable[[str], int]) -> bool:
        """Sends a specification to a waiting worker. Returns False if that is not possible."""
        worker = self._find(lambda each: each.id == worker_id and each.spec is None)
        if worker is None:
            return False
        try:
            _send(worker.channel, spec, open_log)
        except OSError:
            self._remove(worker)
            return False
        worker.spec = spec
        return True

    def read(self, descriptor: int) -> WorkerReport | None:
        """Reads a message of a worker. Returns the event that reports it to the gateway."""
        worker = self._workers.get(descriptor)
        if worker is None:
            return None
        try:
            message = worker.channel.recv(_MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        if message == READY:
            return WorkerReport(worker.id)
        if message == TAKEN:
            worker.spec = None
        if not worker.spec:
            self._remove(worker)
        if not message or message == TAKEN:
            return None
        return WorkerReport(worker.id, message.decode(errors="replace"))

    def forget(self, process_id: str) -> ReplicaSpec | None:
        """Closes the socket of a worker or of the replica that it becomes.

        Returns the specification if the worker has not taken it.
        """
        worker = self._find(
            lambda each: process_id in (each.id, each.spec.id if each.spec else each.id)
        )
        if worker is None:
            return None
        with contextlib.suppress(OSError):
            # It may have been taken just now.
            if worker.channel.recv(_MOST_BYTES) == TAKEN:
                worker.spec = None
        self._remove(worker)
        return worker.spec

    def _find(self, is_meant: Callable[[_Waiting], bool]) -> _Waiting | None:
        return next((worker for worker in self._workers.values() if is_meant(worker)), None)

    def _remove(self, worker: _Waiting) -> None:
        if self._workers.pop(worker.channel.fileno(), None):
            worker.channel.close()


def _send(channel: socket.socket, spec: ReplicaSpec, open_log: Callable[[str], int]) -> None:
    content = os.memfd_create("specification")
    log_descriptor = -1
    try:
        os.write(content, msgspec.msgpack.encode(spec))
        os.lseek(content, 0, os.SEEK_SET)
        log_descriptor = open_log(spec.log_path)
        socket.send_fds(channel, [b"\0"], [content, log_descriptor])
    finally:
        os.close(content)
        if log_descriptor >= 0:
            os.close(log_descriptor)
