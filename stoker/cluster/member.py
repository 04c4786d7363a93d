"""A process of a fleet: started, waited for, and started again when it ends."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.client.errors import CliError
from stoker.cluster.child import Child

START_S = 300.0
"""How long one may take until it says where it is: many at once share the cores."""
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before each start again; the last for all that follow."""
STEADY_S = 60.0
"""Whoever ran for so long has not failed before."""
_LOOK_S = 0.02
_MOMENT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run, by this Python."""

    name: str
    command: Sequence[str]
    """What the interpreter is given."""
    env: Mapping[str, str]
    state: Path | None = None
    """The file that says, in JSON, that it is there; None: it is as soon as it runs."""
    stale: Path | None = None
    """A file that the last one may have left, and this one is not to see."""
    has_work: bool = True
    """Whether its end is waited for; else it is killed where that takes more than a moment."""


class Member:
    def __init__(self, program: Program, log: Path | None, changed: Callable[[str], None]) -> None:
        """
        Args:
            log: where what it writes goes to; None: where what this process writes does.
            changed: is told, in words, what has become of it once it was there.
        """
        self.name = program.name
        self.state: dict[str, Any] = {}
        """What it has said of itself."""
        self._program = program
        self._child = Child(program.name, log)
        self._changed = changed
        self._keeping: asyncio.Task[None] | None = None
        self._port = ""

    async def start(self) -> None:
        """Returns once it has said that it is there; from then on it is started again when it ends.
        Raises `CliError`.
        """
        await self._start()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self, within_s: float) -> bool:
        """Have it end what it is at. Returns whether it has ended in time: it is killed if not.

        Args:
            within_s: what it gets where it has work.
        """
        if self._keeping:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._program.has_work:
            return await self._child.end(signal.SIGTERM, within_s)
        await self._child.end(signal.SIGTERM, _MOMENT_S)
        return True

    def failed(self, what: str) -> CliError:
        """The error that says so, with what it wrote last."""
        return self._child.failed(what)

    async def _start(self) -> None:
        program, state = self._program, self._program.state
        for left in (state, program.stale):
            if left:
                left.unlink(missing_ok=True)
        command = [sys.executable, *program.command]
        if self._port:
            # Where it was before.
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
                raise self._child.failed(f"was not there within {START_S:.0f} s")
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
            self._changed(f"{self.name} {how}. It is started again in {delay_s:g} s.")
            await asyncio.sleep(delay_s)
            begun = time.monotonic()
            try:
                await self._start()
            except CliError as error:
                self._changed("\n".join(filter(None, [error.message, error.hint])))
            except OSError as error:
                self._changed(f"{self.name} could not be started: {error}")
            else:
                self._changed(f"{self.name} is there again, as process {self.state['pid']}.")
