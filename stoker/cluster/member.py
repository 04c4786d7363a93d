"""Process of a fleet, which is restarted when it ends."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.client.errors import StokerError
from stoker.cluster.child import Child

START_S = 300.0
"""Timeout in seconds for the start of a process. Many processes start at once and share the
cores.
"""
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays in seconds before each restart. The last one applies to all further restarts."""
STEADY_S = 60.0
"""Seconds of operation after which earlier failures are forgotten."""
_LOOK_S = 0.02
_MOMENT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that runs with this Python."""

    name: str
    command: Sequence[str]
    """Arguments of the interpreter."""
    env: Mapping[str, str]
    state: Path | None = None
    """JSON file that the program writes when it has started. None if it counts as started once it
    runs.
    """
    stale: Path | None = None
    """File that a previous process may have left. It is deleted before the start."""
    has_work: bool = True
    """True if shutdown waits for the program to finish its work. Otherwise it is killed after a few
    seconds.
    """


class FleetProcess:
    def __init__(self, program: Program, log: Path | None, changed: Callable[[str], None]) -> None:
        """
        Args:
            log: the file for the process's output. None shares the output of this process.
            changed: receives messages about the process after its first start.
        """
        self.name = program.name
        self.state: dict[str, Any] = {}
        """Content of the program's state file."""
        self._program = program
        self._child = Child(program.name, log)
        self._changed = changed
        self._keeping: asyncio.Task[None] | None = None
        self._port = ""

    async def start(self) -> None:
        """Starts the process. Returns once it has reported its start. After that it is restarted
        when it ends. Raises `StokerError`.
        """
        await self._start()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self, within_s: float) -> bool:
        """Stops the process. Returns False if it did not end in time and was killed.

        Args:
            within_s: timeout in seconds for a program that has work.
        """
        if self._keeping:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._program.has_work:
            return await self._child.end(signal.SIGTERM, within_s)
        await self._child.end(signal.SIGTERM, _MOMENT_S)
        return True

    def failed(self, what: str) -> StokerError:
        """Returns an error with the last lines of the process's output."""
        return self._child.failed(what)

    async def _start(self) -> None:
        program, state = self._program, self._program.state
        for leftover in (state, program.stale):
            if leftover:
                leftover.unlink(missing_ok=True)
        command = [sys.executable, "-P", *program.command]
        if self._port:
            # Keeps the port of the previous process.
            command += ["--port", self._port]
        await self._child.start(command, env=program.env)
        if state is None:
            self.state = {"pid": self._child.pid}
            return
        deadline = time.monotonic() + START_S
        while not state.exists():
            if not self._child.is_running:
                raise self._child.failed(await self._child.wait())
            if time.monotonic() > deadline:
                await self._child.end(signal.SIGTERM, 0)
                raise self._child.failed(f"did not start within {START_S:.0f} s")
            await asyncio.sleep(_LOOK_S)
        self.state = json.loads(state.read_text())
        if url := self.state.get("base_url"):
            self._port = url.rpartition(":")[2]

    async def _keep(self) -> None:
        failures, begun = 0, time.monotonic()
        while True:
            how = await self._child.wait()
            if time.monotonic() - begun > STEADY_S:
                failures = 0
            delay_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
            failures += 1
            self._changed(f"{self.name} {how}. It is restarted in {delay_s:g} s.")
            await asyncio.sleep(delay_s)
            begun = time.monotonic()
            try:
                await self._start()
            except StokerError as error:
                self._changed("\n".join(filter(None, [error.message, error.hint])))
            except OSError as error:
                self._changed(f"{self.name} could not be started: {error}")
            else:
                self._changed(f"{self.name} is running again, as process {self.state['pid']}.")
