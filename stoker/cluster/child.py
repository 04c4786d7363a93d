"""A process that ends when this one does, however that ends, and what it writes."""

import asyncio
import contextlib
import json
import os
import signal as signals
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker import sandbox
from stoker.client.errors import CliError

LOG_BYTES = 16 << 20
"""A log that has grown beyond is put aside when its process is started, in the place of the last
one that was."""
_READ_BYTES = 64 << 10
_SHOWN_LINES = 12
_KILLED_S = 10.0


class FailedError(CliError):
    """A process of the fleet has ended, or has not begun to work in time."""


class Child:
    def __init__(self, name: str, log: Path | None) -> None:
        """
        Args:
            log: where what it writes goes to; None: where what this process writes does.
        """
        self.name = name
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._begun_at = 0

    @property
    def pid(self) -> int:
        """Of the last one that was started; 0: there was none."""
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
        """Start the process. To be called on the main thread, whose end the kernel looks at.

        Args:
            ends_by: what it is sent when this process ends.
            user: with `group`, whom it runs as.
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
                # Ctrl-C is for this process alone: it ends the others in their order.
                start_new_session=True,
                preexec_fn=_tied_to(os.getpid(), ends_by),
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                pass_fds=pass_fds,
                cwd=cwd,
            )

    async def wait(self) -> str:
        """How it has ended, in words. At once, where it was never started."""
        return _told(await self._process.wait()) if self._process else "was not started"

    def signal(self, number: signals.Signals) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, number: signals.Signals, within_s: float) -> bool:
        """Have it end; by SIGKILL where it takes longer. Returns whether it did by itself."""
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

    def failed(self, what: str) -> FailedError:
        """The error that says so, with what the process wrote last."""
        lines = self.last_lines()
        hint = f"The end of {self.log}:\n{lines}" if lines else f"Its log is {self.log}."
        if self.log is None:
            hint = "What it has said stands above."
        return FailedError(f"{self.name} {what}.", hint=hint)

    def last_lines(self) -> str:
        """The end of what it has written to its log since it was started."""
        if self.log is None:
            return ""
        try:
            with self.log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._begun_at, end - _READ_BYTES))
                found = log.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [part for line in found.splitlines() for part in _readable(line).splitlines()]
        return "\n".join(lines[-_SHOWN_LINES:])


def _put_aside(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))


def _readable(line: str) -> str:
    """A line of a log; of one in JSON what it says, which may be many lines."""
    try:
        return str(json.loads(line)["event"])
    except (ValueError, KeyError, TypeError):
        return line


def _tied_to(parent: int, ends_by: signals.Signals) -> Callable[[], None]:
    """What a new process does before it becomes another program."""

    def tie() -> None:
        sandbox.die_with_parent(ends_by)
        if os.getppid() != parent:
            # It has ended before, and the kernel will tell of nothing.
            os._exit(1)

    return tie


def _told(code: int) -> str:
    if code >= 0:
        return f"has ended with exit code {code}"
    try:
        return f"was ended by {signals.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
