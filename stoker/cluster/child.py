"""Child process that ends when this process ends for any reason, and its log."""

import asyncio
import contextlib
import json
import os
import signal as signals
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker import sandbox
from stoker.client.errors import StokerError

LOG_BYTES = 16 << 20
"""Size in bytes above which a log is rotated when its process starts. Only one old log is kept."""
_READ_BYTES = 64 << 10
_SHOWN_LINES = 12
_KILLED_S = 10.0


class ProcessFailedError(StokerError):
    """Raised if a process of the fleet has ended or did not start in time."""


class Child:
    def __init__(self, name: str, log: Path | None) -> None:
        """
        Args:
            log: the file for the process's output. None shares the output of this process.
        """
        self.name = name
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._begun_at = 0

    @property
    def pid(self) -> int:
        """Process id of the last started process. 0 if none was started."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        ends_by: signals.Signals = signals.SIGKILL,
        user: int | None = None,
        group: int | None = None,
        pass_fds: Sequence[int] = (),
        cwd: str | None = None,
    ) -> None:
        """Starts the process. Must be called on the main thread: the kernel watches the end of the
        calling thread.

        Args:
            ends_by: the signal that the child receives when this process ends.
            user: the user that the process runs as, with `group`.
        """
        with contextlib.ExitStack() as stack:
            log = None
            if self.log:
                _put_aside(self.log)
                log = stack.enter_context(self.log.open("ab"))
                self._begun_at = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                # Ctrl-C must reach only this process, which ends the others in order.
                start_new_session=True,
                preexec_fn=_tied_to(os.getpid(), ends_by),
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                pass_fds=pass_fds,
                cwd=cwd,
            )

    async def wait(self) -> str:
        """Waits for the end of the process and describes it in words. Returns immediately if it was
        never started.
        """
        return _told(await self._process.wait()) if self._process else "was not started"

    def signal(self, number: signals.Signals) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, number: signals.Signals, within_s: float) -> bool:
        """Sends a signal and waits for the end of the process. Kills it by SIGKILL after `within_s`
        seconds. Returns True if it ended without SIGKILL.
        """
        if not self.is_running:
            return True
        self.signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), within_s)
            return True
        self.signal(signals.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), _KILLED_S)
        return False

    def failed(self, what: str) -> ProcessFailedError:
        """Returns an error with the last lines of the process's output."""
        lines = self.last_lines()
        hint = f"The end of {self.log}:\n{lines}" if lines else f"Its log is {self.log}."
        if self.log is None:
            hint = "Its output is above."
        return ProcessFailedError(f"{self.name} {what}.", hint=hint)

    def last_lines(self) -> str:
        """Returns the end of the log since the last start."""
        if self.log is None:
            return ""
        try:
            with self.log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._begun_at, end - _READ_BYTES))
                content = log.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [part for line in content.splitlines() for part in _readable(line).splitlines()]
        return "\n".join(lines[-_SHOWN_LINES:])


def _put_aside(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))


def _readable(line: str) -> str:
    """Converts a log line to readable text. For a line in JSON this is its event, which may have
    many lines.
    """
    try:
        return str(json.loads(line)["event"])
    except (ValueError, KeyError, TypeError):
        return line


def _tied_to(parent: int, ends_by: signals.Signals) -> Callable[[], None]:
    """Returns a function that a new process runs before it executes another program."""

    def tie() -> None:
        sandbox.die_with_parent(ends_by)
        if os.getppid() != parent:
            # The parent ended before the call, so the kernel will send no signal.
            os._exit(1)

    return tie


def _told(code: int) -> str:
    if code >= 0:
        return f"has ended with exit code {code}"
    try:
        return f"was ended by {signals.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
