"""The template: imports what servers and engine hosts import, and forks them.

It has one thread. It ends when the tests' end of its socket is closed.
"""

import ctypes
import gc
import importlib
import os
import socket
import sys

from tests.support.template.becoming import become, receive
from tests.support.template.hosts import HOST, offer

SERVER = (
    "stoker.cli.main",
    "stoker.server.app",
    "stoker.server.bootstrap",
    "stoker.server.node",
    "stoker.server.serve",
    "stoker.demo.command",
    "stoker.runtime.local",
    "stoker.runtime.nodes",
    "alembic.command",
    "uvloop",
)
"""Modules that a server imports by the time it answers, in addition to those that they import."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    kept = _import_all()
    while received := receive(channel):
        request, descriptors = received
        if child := _fork():
            channel.sendall(b"%d" % child)
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        channel.close()
        if request["has_host"]:
            offer(descriptors)
        _forget_all_but(kept)
        become(request, descriptors)
        return


def _import_all() -> set[str]:
    """Returns the names of the modules that servers keep."""
    gc.disable()
    for name in SERVER:
        importlib.import_module(name)
    kept = set(sys.modules)
    importlib.import_module(HOST).import_libraries()
    # It runs as the main module.
    del sys.modules[HOST]
    gc.enable()
    gc.freeze()
    return kept


def _fork() -> int:
    """Forks a child of the process that adopts what this process' children leave behind.

    Returns its process id, or 0 in the child.
    """
    go, pid = os.pipe(), os.pipe()
    between = os.fork()
    if between == 0:
        if child := os.fork():
            os.write(pid[1], b"%d" % child)
            os._exit(0)
        os.close(go[1])
        # The child begins when its parent is the right one.
        os.read(go[0], 1)
        for descriptor in (go[0], *pid):
            os.close(descriptor)
        return 0
    os.waitpid(between, 0)
    child = int(os.read(pid[0], 32))
    for descriptor in (*go, *pid):
        os.close(descriptor)
    return child


def _forget_all_but(kept: set[str]) -> None:
    """Removes the engine's libraries from a server. Its attempt to import them again fails."""
    names = [name for name in sys.modules if name not in kept]
    forgotten = [
        sys.modules.pop(name)
        for name in names
        if name.partition(".")[0] not in sys.stdlib_module_names
    ]
    # Freeing these objects would delay the server's exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(forgotten))


if __name__ == "__main__":
    main()
