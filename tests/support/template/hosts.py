"""Engine hosts that are forks of a template.

Before the server begins, its process forks a waiting process, which becomes the first engine host.
Later engine hosts start as users start them.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.base.module_command import module_command
from tests.support.template.becoming import become, receive, send

HOST = "stoker.replica.host"
_REAL = asyncio.create_subprocess_exec


def offer(descriptors: Sequence[int]) -> None:
    """Forks a process that becomes the first engine host that this process starts."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        asyncio.create_subprocess_exec = _Waiting(pid, ours).start
        return
    ours.close()
    for descriptor in descriptors:
        os.close(descriptor)
    received = receive(theirs)
    theirs.close()
    if received:
        os.setsid()
        become(*received)
    # An ordinary end would copy the shared pages of all objects that it frees.
    logging.shutdown()
    os._exit(0)


class _Waiting:
    """Process that becomes the first engine host."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self._pid = pid
        self._channel = channel
        self._is_free = True

    async def start(self, *command: Any, **options: Any) -> Any:
        """Replaces `asyncio.create_subprocess_exec`."""
        if list(command) != module_command(HOST) or not self._is_free:
            return await _REAL(*command, **options)
        self._is_free = False
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, limits)
        stdin, their_stdin = socket.socketpair()
        stdout, their_stdout = socket.socketpair()
        request = {
            "command": command,
            "env": options["env"],
            "folder": str(Path.cwd()),
        }
        with self._channel, their_stdin, their_stdout:
            files = [their_stdin, their_stdout, options["stderr"]]
            send(self._channel, request, [file.fileno() for file in files])
        into = await asyncio.open_unix_connection(sock=stdin)
        out = await asyncio.open_unix_connection(sock=stdout)
        return _Host(self._pid, into, out)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Host:
    """Started engine host, with the methods of `asyncio.subprocess.Process` that are used."""

    def __init__(self, pid: int, into: _Streams, out: _Streams) -> None:
        self.pid = pid
        # A stream is closed once nothing refers to its writer.
        self._out = out
        self.stdin = into[1]
        self.stdout = out[0]
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def kill(self) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()
