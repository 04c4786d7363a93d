"""Moves the GPU memory of replicas to main memory and back, through the CUDA driver."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from stoker.base.module_command import module_command
from stoker.runtime.pool.launcher import SleepError

log = logging.getLogger(__name__)

_PROGRAM = module_command("stoker.replica.checkpoint")
_START_S = 20.0
_MOVE_S = 120.0
"""Timeout of one move in seconds. 80 GB take 40 s at the measured 2 GB a second."""
_MOST_SPARE = 1
"""Maximum number of idle programs that are ready for the next move. Starting one takes 0.25 s."""
_OK = b"ok"


class Checkpoints(Protocol):
    @property
    def is_supported(self) -> bool:
        """True if the driver can move the memory of a process. False until `start` has ended."""
        ...

    async def start(self) -> None:
        """Finds out if the driver can move the memory of a process."""
        ...

    async def sleep(self, pid: int) -> None:
        """Moves a process's GPU memory to main memory. Raises `SleepError`."""
        ...

    async def wake(self, pid: int) -> None:
        """Moves a process's memory back to its GPU. Raises `SleepError`."""
        ...

    async def close(self) -> None: ...


class DriverCheckpoints:
    """Runs each move in a separate program, because a driver may hang."""

    def __init__(self, program: Sequence[str] = _PROGRAM) -> None:
        self._program = program
        self._is_supported = False
        self._spare: list[asyncio.subprocess.Process] = []

    @property
    def is_supported(self) -> bool:
        return self._is_supported

    async def start(self) -> None:
        try:
            self._keep(await self._begin())
        except SleepError as error:
            log.info("replicas on GPUs cannot sleep: %s", error)
            return
        self._is_supported = True

    async def sleep(self, pid: int) -> None:
        await self._move("sleep", pid)

    async def wake(self, pid: int) -> None:
        await self._move("wake", pid)

    async def close(self) -> None:
        while self._spare:
            process = self._spare.pop()
            _kill(process)
            await process.wait()

    async def _move(self, action: str, pid: int) -> None:
        process = self._take_spare() or await self._begin()
        if process.stdin is None:
            raise SleepError("the program has no input")
        try:
            process.stdin.write(f"{action} {pid}\n".encode())
            answer = await self._answer(process, _MOVE_S)
        except BaseException:
            _kill(process)
            raise
        self._keep(process)
        if answer != _OK:
            raise SleepError(answer.decode(errors="replace"))

    def _take_spare(self) -> asyncio.subprocess.Process | None:
        """Returns a running program that waits for a move. None if there is none."""
        while self._spare:
            process = self._spare.pop()
            if process.returncode is None:
                return process
        return None

    async def _begin(self) -> asyncio.subprocess.Process:
        """Returns a program that is ready for a move. Raises `SleepError`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise SleepError(f"the program could not be started: {error}") from error
        try:
            answer = await self._answer(process, _START_S)
        except BaseException:
            _kill(process)
            raise
        if answer != _OK:
            _kill(process)
            raise SleepError(answer.decode(errors="replace"))
        return process

    async def _answer(self, process: asyncio.subprocess.Process, seconds: float) -> bytes:
        if process.stdout is None:
            raise SleepError("the program has no output")
        try:
            async with asyncio.timeout(seconds):
                line = await process.stdout.readline()
        except TimeoutError:
            if self._is_supported:
                log.error("GPU driver hangs in a checkpoint: no more replicas are put to sleep")
            # Each attempt would delay the claim that it frees memory for by the timeout.
            self._is_supported = False
            raise SleepError(f"the driver did not answer within {seconds:g} s") from None
        if not line:
            raise SleepError("the program ended")
        return line.strip()

    def _keep(self, process: asyncio.subprocess.Process) -> None:
        if len(self._spare) < _MOST_SPARE:
            self._spare.append(process)
        else:
            _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    # asyncio reaps it.
    with contextlib.suppress(ProcessLookupError):
        process.kill()
