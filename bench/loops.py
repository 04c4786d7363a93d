"""Loops without a server, each in a separate process that receives one task per line."""

import contextlib
import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import launching
from bench.common import ROOT, Report
from bench.processes import awake, child, suspend


class Loop:
    """A child process that answers each line of JSON with another line."""

    def __init__(
        self, side: str, process: "subprocess.Popen[str]", log_path: Path, *, is_suspended: bool
    ) -> None:
        self._side = side
        self._process = process
        self._log_path = log_path
        self._is_suspended = is_suspended
        self._heard()
        if is_suspended:
            suspend(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, task: Any) -> Any:
        """Sends a task and returns the answer. Raises `RuntimeError` if the child has ended."""
        if self._process.stdin is None:
            raise RuntimeError("the child has no pipes")
        with awake(self._process.pid) if self._is_suspended else contextlib.nullcontext():
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(task) + "\n")
                self._process.stdin.flush()
            return self._heard()

    def _heard(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"{self._log_path.read_text()[-2000:]}\n{self._side} ended")
        return json.loads(line)


@contextlib.contextmanager
def looping(
    report: Report,
    side: str,
    command: Sequence[str | Path],
    given: Mapping[str, str],
    place: Path,
    *,
    is_suspended: bool = True,
) -> Generator[Loop]:
    """Starts a child and waits until it is ready. Raises `RuntimeError` if it does not become
    ready.

    Args:
        is_suspended: True if the child is suspended except during a task. Otherwise it only waits
            for tasks.
    """
    given = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **given}
    launching.told(report, side, command, given)
    log_path = place / f"{side.replace(' ', '-')}.log"
    with (
        log_path.open("ab") as log,
        child(
            command,
            cwd=place,
            env=launching.environment(given),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        yield Loop(side, process, log_path, is_suspended=is_suspended)
