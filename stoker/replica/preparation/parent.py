"""The parent of a replica's preparation processes.

It is forked before the replica initialises CUDA and starts threads, so that its own forks are safe.
It inherits the walls. It waits in a system call until preparation turns out to be slow.
"""

import contextlib
import gc
import logging
import os
import pickle
import signal
import socket
from dataclasses import dataclass

from stoker import sandbox
from stoker.models.stages.base import Stages
from stoker.replica.cuda_guard import CudaGuard
from stoker.replica.named_thread import set_name
from stoker.replica.preparation import process
from stoker.replica.preparation.messages import (
    ANSWER_BYTES,
    COMMAND,
    LOAD,
    LOG,
    START,
    SharedMemory,
)
from stoker.replica.preparation.permits import Permits

log = logging.getLogger(__name__)

MOST_PROCESSES = 32
"""Maximum number of preparation processes of one replica."""
_LOAD_S = 30.0


class ParentGoneError(Exception):
    """Raised if the parent has ended or does not answer."""


@dataclass(frozen=True)
class PreparationParent:
    """The replica's connection to the parent. One thread uses it."""

    pid: int
    most: int
    """Maximum number of preparation processes of the machine."""
    permits: Permits
    memory: SharedMemory
    connection: socket.socket

    def log_to(self, descriptor: int) -> None:
        """Redirects the output of the parent and its processes to an open file."""
        # If the parent has ended, the next command detects it.
        with contextlib.suppress(OSError):
            socket.send_fds(self.connection, [COMMAND.pack(LOG, 0)], [descriptor])

    def load(self, pickled: bytes) -> str:
        """Replaces the stages of processes that are started later. Returns why that failed, or an
        empty text. Raises `ParentGoneError`.
        """
        try:
            self.connection.sendall(COMMAND.pack(LOAD, len(pickled)))
            self.connection.sendall(pickled)
            answer = self.connection.recv(ANSWER_BYTES)
        except OSError as error:
            raise ParentGoneError(str(error)) from error
        if not answer:
            raise ParentGoneError
        return answer[1:].decode(errors="replace")

    def start(self, number: int) -> socket.socket:
        """Starts a process and returns the connection to it. Raises `ParentGoneError`.

        The first message on the connection is its process id.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self.connection, [COMMAND.pack(START, number)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise ParentGoneError(str(error)) from error
        return ours


def fork_parent(most: int, permits: Permits) -> PreparationParent | None:
    """Forks the parent. Returns None if the machine lacks the memory or processes for it.

    The calling process must have one thread and must not have used CUDA.

    Args:
        most: maximum number of preparation processes of the machine.
    """
    try:
        memory = SharedMemory(min(most, MOST_PROCESSES))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = os.fork()
    except OSError as error:
        log.warning("inputs are prepared in the replica only: %s", error)
        return None
    if pid == 0:
        ours.close()
        _be_parent(theirs, memory)
    theirs.close()
    ours.settimeout(_LOAD_S)
    return PreparationParent(pid, most, permits, memory, ours)


def _be_parent(connection: socket.socket, memory: SharedMemory) -> None:
    code = 70
    try:
        sandbox.die_with_parent()
        sandbox.seal()
        set_name("preparation")
        # The kernel reaps its children.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        CudaGuard().install()
        _Parent(connection, memory).run()
        code = 0
    except BaseException:
        log.exception("the parent of preparation processes failed")
    finally:
        logging.shutdown()
        os._exit(code)


def _redirect(descriptor: int) -> None:
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


class _Parent:
    def __init__(self, connection: socket.socket, memory: SharedMemory) -> None:
        self._connection = connection
        self._memory = memory
        self._stages: Stages | None = None

    def run(self) -> None:
        """Executes commands until the replica closes the connection."""
        while True:
            head, descriptors, _, _ = socket.recv_fds(self._connection, COMMAND.size, 1)
            if len(head) < COMMAND.size:
                return
            kind, number = COMMAND.unpack(head)
            if kind == LOAD:
                self._connection.sendall(b"." + self._load(number).encode())
            elif kind == LOG:
                _redirect(descriptors[0])
            else:
                self._start(number, descriptors[0])

    def _load(self, size: int) -> str:
        pickled = bytearray(size)
        view = memoryview(pickled)
        while view:
            view = view[self._connection.recv_into(view) :]
        try:
            self._stages = pickle.loads(pickled)  # noqa: S301 - the replica's own
        except Exception as error:
            return f"{type(error).__name__}: {error}"[: ANSWER_BYTES // 4]
        # Keeps the collector from touching, and so copying, the shared pages.
        gc.freeze()
        return ""

    def _start(self, number: int, descriptor: int) -> None:
        stages = self._stages
        try:
            pid = os.fork() if stages else -1
        except OSError as error:
            # The replica sees that the connection closes.
            log.warning("no preparation process could be forked: %s", error)
            pid = -1
        if pid == 0 and stages:
            self._be_process(number, descriptor, stages)
        os.close(descriptor)

    def _be_process(self, number: int, descriptor: int, stages: Stages) -> None:
        code = 70
        try:
            sandbox.die_with_parent()
            self._connection.close()
            with socket.socket(fileno=descriptor) as connection:
                process.serve(connection, self._memory, number, stages)
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0
        except BaseException:
            log.exception("preparation process failed")
        finally:
            logging.shutdown()
            os._exit(code)
