"""Program that tests which walls this machine supports, by putting them up around itself.

It prints JSON that maps each wall to None if it works, otherwise to the problem.
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
"""Id of another user. Only a privileged process can pass files to it."""


def main() -> None:
    """Runs the test. If root runs it, the argument is the user to become; empty means none."""
    logging.disable()
    user = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1] else None
    sys.stdout.write(json.dumps(look(user)))


def look(user: int | None) -> dict[str, str | None]:
    """Tests the walls in a child process that is confined like a replica. Maps each wall to its
    problem; None means that it works.
    """
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as other:
        own_folder, secret = Path(folder, "own"), Path(folder, "secret")
        own_folder.mkdir()
        secret.write_text("not to be read")
        port = other.getsockname()[1]
        parent = os.getppid()
        report, report_writer = os.pipe()
        process = os.fork()
        if process == 0:
            problems = _inside(own_folder, secret, port, parent, user)
            os.write(report_writer, json.dumps(problems).encode())
            os._exit(0)
        os.close(report_writer)
        with os.fdopen(report, "rb") as lines:
            output = lines.read()
        os.waitpid(process, 0)
        return json.loads(output or b"{}")


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
    # A process without root keeps its user.
    names = (*NAMES, "user") if was_root else NAMES
    problems = {name: missing.get(name) for name in names}
    for name, attempt in tried.items():
        if _succeeds(attempt) and not problems[name]:
            problems[name] = "an attempt to get past it succeeded"
    return problems


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
