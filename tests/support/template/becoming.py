"""How a fork of a template becomes another process of Stoker."""

import array
import ctypes
import io
import json
import os
import runpy
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Request = dict[str, Any]
"""Command line, environment and folder of a process. The descriptors are its first three."""


def send(channel: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    content = json.dumps(request).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([len(content).to_bytes(4, "big")], rights)
    channel.sendall(content)


def receive(channel: socket.socket) -> tuple[Request, list[int]] | None:
    """Returns a request and its descriptors, or None at the end."""
    size, descriptors, _, _ = socket.recv_fds(channel, 4, 3)
    if not size:
        return None
    content = b""
    while len(content) < int.from_bytes(size, "big"):
        chunk = channel.recv(1 << 16)
        if not chunk:
            return None
        content += chunk
    return json.loads(content), list(descriptors)


def become(request: Request, descriptors: Sequence[int]) -> None:
    """Runs a module as `python -m` does."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    tempfile.tempdir = None
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    command: list[str] = request["command"]
    _show(command)
    module, *arguments = command[command.index("-m") + 1 :]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show(command: Sequence[str]) -> None:
    """Shows a command line as that of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = " ".join(command).encode()
    room = end - start
    if len(text) >= room:
        raise ValueError(f"too long: {command}")
    ctypes.memset(start, 0, room)
    ctypes.memmove(start, text, len(text))
    # Without a zero byte there, the kernel shows the text up to its end; see proc(5), setproctitle.
    ctypes.memset(end - 1, 1, 1)
