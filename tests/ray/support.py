"""Runs Ray with several nodes on this machine, by the commands that a user would type."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 120.0
_FROM, _PORTS = 20_000, 12_000
"""First port and number of ports to choose from. They are below the kernel's ports for outgoing
connections.
"""


def free_port() -> int:
    while True:
        port = _FROM + secrets.randbelow(_PORTS)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Command:
    """Runs one of our commands until it is stopped."""

    def __init__(self, log: Path, *words: str, **env: str) -> None:
        self._words, self._log = words, log
        inherited = {name: value for name, value in os.environ.items() if name[:7] != "STOKER_"}
        self._env = {**inherited, **env}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stoker", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def child(self, word: str) -> psutil.Process:
        """Returns the child process with this word in its command line."""
        assert self.process
        for descendant in psutil.Process(self.process.pid).children(recursive=True):
            if (
                any(word in part for part in descendant.cmdline()[:3])
                or word in descendant.cmdline()
            ):
                return descendant
        raise AssertionError(f"no '{word}' below {self._words}")

    def kill(self) -> None:
        """Kills the process and all its descendants, as the loss of a machine does."""
        assert self.process
        all_of = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for descendant in all_of:
            try:
                descendant.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def last_lines(self) -> str:
        return self._log.read_text()[-3000:]


def until(found: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """Waits until the function returns a true value. Returns that value."""
    deadline = time.monotonic() + within_s
    while True:
        if result := found():
            return result
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.05)


def state(data_dir: Path) -> Mapping[str, Any]:
    """Returns the state that a node host writes. Empty if the file does not exist yet."""
    try:
        return json.loads((data_dir / "node.json").read_text())
    except FileNotFoundError:
        return {}


def refused(words: list[str], data_dir: Path, env: Mapping[str, str]) -> str:
    """Returns the error of a `stoker node …` command that fails to start."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "node", *words, "--data-dir", str(data_dir)],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode
    assert b"Traceback" not in done.stderr
    return " ".join(done.stderr.decode().split())
