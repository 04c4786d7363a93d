"""Runs the command in a real terminal."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cli.support import Cli

LONGEST_S = 120.0
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without a size, which readline sets for child processes."""
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}


def _take_terminal() -> None:
    """Lets Ctrl-C reach the process: by its controlling terminal, and if the tests ignore it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A command with a terminal of its own. Use it as a context manager."""

    def __init__(
        self,
        cli: Cli,
        *arguments: str,
        columns: int = 80,
        lines: int = 24,
        folder: Path | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._read = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=_without_size(cli.environment) | {"TERM": "xterm"},
            cwd=folder,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """Returns the output up to a text. Fails if it does not come."""
        deadline = time.monotonic() + LONGEST_S
        while text not in self._read:
            assert time.monotonic() < deadline, f"no {text!r} in {self._read!r}"
            assert self._receive(), f"ended without {text!r}: {self._read!r}"
        shown, _, self._read = self._read.partition(text)
        return shown + text

    def rest(self) -> str:
        """Returns the remaining output, once the command has ended."""
        while self._receive():
            pass
        rest, self._read = self._read, ""
        return rest

    def code(self) -> int:
        return self._process.wait(timeout=LONGEST_S)

    def _receive(self) -> bool:
        """Reads for up to a second. Returns False once the command has ended."""
        piece = b""
        if select.select([self._master], [], [], 1)[0]:
            # Linux reports the end of a terminal as an error.
            with contextlib.suppress(OSError):
                piece = os.read(self._master, 65536)
            if not piece:
                return False
        self._read = _CODES.sub("", self._read + piece.decode(errors="replace"))
        return True


def shown(cli: Cli, *arguments: str, columns: int = 80, lines: int = 24) -> list[str]:
    """Returns the lines that a command prints on a terminal of this size."""
    with Terminal(cli, *arguments, columns=columns, lines=lines) as terminal:
        output = terminal.rest()
        assert terminal.code() == 0, output
    return [line.rstrip() for line in output.split("\n")]
