"""Runs a function in a forked child, confined or not, with a timeout."""

import logging
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from stoker.sandbox.walls import Walls, confine, die_with_parent

log = logging.getLogger(__name__)

Attempt = Callable[[], str]
"""Function that returns its problem or a report. Empty means success. An exception counts as a
problem.
"""


class AttemptResult(NamedTuple):
    text: str
    has_returned: bool
    """True if the function returned the text. False if it raised, hung or ended its process."""


_MOST_BYTES = 4096
_KILL_S = 2.0
"""Time for a killed process to end. A process that hangs in a driver may never end."""


def problem_of(attempt: Attempt, timeout_s: float, walls: Walls | None = None) -> str:
    """Returns the problem of an attempt in a child process. Empty if it succeeded. The arguments
    are those of `outcome_of`.
    """
    return outcome_of(attempt, timeout_s, walls).text


def outcome_of(attempt: Attempt, timeout_s: float, walls: Walls | None = None) -> AttemptResult:
    """Runs a function in a child process. This process must have only one thread.

    Args:
        walls: walls around the child. It gets a new folder below their folder. None means none.
    """
    if walls is None:
        return _in_child(attempt, timeout_s)
    with tempfile.TemporaryDirectory(dir=walls.folder) as folder:
        own = replace(walls, folder=Path(folder))

        def confined() -> str:
            confine(own)
            return attempt()

        return _in_child(confined, timeout_s)


def _in_child(attempt: Attempt, timeout_s: float) -> AttemptResult:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(attempt, writer)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as report:
        text = _read(report.fileno(), timeout_s)
    if text is None:
        os.kill(pid, signal.SIGKILL)
        _reap(pid, _KILL_S)
        return AttemptResult(f"no answer within {timeout_s:.0f} s", has_returned=False)
    status = _reap(pid, _KILL_S)
    if status:
        return AttemptResult(text or f"the process ended with status {status}", has_returned=False)
    return AttemptResult(text, has_returned=True)


def _be_child(attempt: Attempt, writer: int) -> None:
    code = 1
    try:
        die_with_parent()
        # Problems are reported by the caller.
        logging.disable()
        try:
            text, code = attempt(), 0
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode(errors="replace")[:_MOST_BYTES])
    finally:
        os._exit(code)


def _read(descriptor: int, timeout_s: float) -> str | None:
    """Returns the text up to the end. None if the end does not come in time."""
    deadline, parts = time.monotonic() + timeout_s, list[bytes]()
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(descriptor, _MOST_BYTES)
        if not part:
            return b"".join(parts).decode(errors="replace")
        parts.append(part)
    return None


def _reap(pid: int, timeout_s: float) -> int | None:
    """Returns the exit status, or None if the process does not end in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None
