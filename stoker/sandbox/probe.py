"""Which walls this machine gives, found out by putting them up around this process.

A program: it prints JSON, each wall with None where it stands, or with what it lacks.
"""

import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stoker.sandbox import kernel, seccomp
from stoker.sandbox.walls import Walls, confine, seal

NAMES = ("files", "network", "system calls", "sockets", "signals", "processes", "capabilities")
_SESSION_KEYRING = -3
_OTHER = 1
"""Some user, to whom only a privileged process gives files."""


def main() -> None:
    """The argument is the user to become, where root asks; empty: none."""
    logging.disable()
    user = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1] else None
    sys.stdout.write(json.dumps(look(user)))


def look(user: int | None) -> dict[str, str | None]:
    """Of a child that is confined as a replica is. None: the wall stands."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as other:
        own, secret = Path(folder, "own"), Path(folder, "secret")
        own.mkdir()
        secret.write_text("not to be read")
        port = other.getsockname()[1]
        parent = os.getppid()
        report, told = os.pipe()
        process = os.fork()
        if process == 0:
            found = _inside(own, secret, port, parent, user)
            os.write(told, json.dumps(found).encode())
            os._exit(0)
        os.close(told)
        with os.fdopen(report, "rb") as lines:
            said = lines.read()
        os.waitpid(process, 0)
        return json.loads(said or b"{}")


def _inside(
    own: Path, secret: Path, port: int, parent: int, user: int | None
) -> dict[str, str | None]:
    was_root = os.geteuid() == 0
    standing = confine(Walls(folder=own, kept_back=secret.parent, user=user))
    seal()
    missing = standing.missing
    tried: dict[str, Callable[[], object]] = {
        "files": secret.read_bytes,
        "network": lambda: socket.create_connection(("127.0.0.1", port), timeout=2).close(),
        "system calls": lambda: kernel.syscall(seccomp.KEYCTL, 0, _SESSION_KEYRING, 1),
        "sockets": lambda: socket.socket(socket.AF_UNIX).close(),
        "signals": lambda: os.kill(parent, 0),
        "capabilities": lambda: os.chown(own, _OTHER, _OTHER),
    }
    # Who is not root stays who it is.
    names = (*NAMES, "user") if was_root else NAMES
    found = {name: missing.get(name) for name in names}
    for name, attempt in tried.items():
        if _succeeds(attempt) and not found[name]:
            found[name] = "it was tried and did not hold"
    return found


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
