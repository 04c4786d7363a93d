"""The tests' side of a template."""

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from stoker.runtime.local.processes import engine_host
from tests.support.template.becoming import send

TEMPLATE = "tests.support.template.process"
ROOM = "-" * 4096
"""Argument that leaves room for the command lines of forks."""
FORKED = (("serve",), ("demo",), ("node", "host"))
"""First words of the commands that a template can fork."""
RUNTIMES = ("local", "nodes", "ray")
"""Runtimes that need no engine's libraries in the server."""
OWN = ("STOKER_", "OTEL_")
"""Prefixes of the environment variables that no library reads on import."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None, use_errno=True)


def can_fork(command: Sequence[str], python: str, env: Mapping[str, str]) -> bool:
    """Returns True if a template may fork this server of Stoker.

    Args:
        env: the variables that differ from those of this process.
    """
    is_asked_for = os.environ.get("STOKER_TEST_TEMPLATE", os.environ.get("PYTEST_XDIST_WORKER"))
    return (
        is_asked_for not in (None, "", "0")
        and any(tuple(command[: len(begin)]) == begin for begin in FORKED)
        and python == sys.executable
        and env.get("STOKER_RUNTIME", "local") in RUNTIMES
        and all(name.startswith(OWN) for name in env)
    )


class Forked(subprocess.Popen[bytes]):
    """A child of this process that the template has forked."""

    def __init__(self, module: str, arguments: Sequence[str], log: IO[bytes], env: dict[str, str]):
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = log.fileno()
        super().__init__(self._command, env=env)

    def _execute_child(self, *arguments: object) -> None:
        (env,) = [argument for argument in arguments if isinstance(argument, dict)]
        request = {
            "command": self._command,
            "env": env,
            "folder": str(Path.cwd()),
            "has_host": _has_host(env),
        }
        # Some tests start servers on several threads.
        with _turns:
            self.pid = _template().fork(request, [0, self._log, self._log])
        self._child_created = True


class Template:
    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", TEMPLATE, str(theirs.fileno()), ROOM],
                env={**os.environ, **engine_host.environment()},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
            )

    def fork(self, request: Mapping[str, object], descriptors: Sequence[int]) -> int:
        """Forks a child of this process. Returns its process id."""
        with _adopting():
            send(self._channel, request, descriptors)
            answer = self._channel.recv(32)
        if not answer:
            raise RuntimeError(f"the template ended with status {self._process.wait()}")
        return int(answer)


def _has_host(env: Mapping[str, str]) -> bool:
    """Returns True if a server with these settings starts an engine host in any case."""
    return env.get("STOKER_PRELOAD") != "false" and env.get("STOKER_RUNTIME", "local") == "local"


_turns = threading.Lock()
_started: list[Template] = []


def _template() -> Template:
    if not _started:
        _started.append(Template())
    return _started[0]


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Makes this process the parent of a process that the template's child leaves behind."""
    before = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
