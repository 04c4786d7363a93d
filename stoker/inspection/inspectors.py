"""Inspection in processes of their own: bounded in number, memory and time, shared by account."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable

import msgspec

from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.inspector import Inspection
from stoker.inspection.messages import LENGTH, Ask, Found, Limits, Wanted, frame, framed
from stoker.store.blobs import Blobs, Files, Folder
from stoker.turns import Slots

log = logging.getLogger(__name__)

PLACES, GREED = 4, 3
"""Of four inspections at once, one account has three at most."""
MEMORY_BYTES = 2 << 30
"""Address space of one process: the largest tokenizers take a quarter of it."""
DEADLINE_S = 120.0
"""Longest inspection; one of a large model takes a second."""
_KEPT_BYTES = 256 << 20
"""A process that has held more is not kept: Python gives little back."""
_KEPT_IDLE = 1
_TRIES = 2
_AHEAD_BYTES = 4 << 20
_KEPT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class InspectorError(Exception):
    """The files could not be read. Says nothing of them."""


class _EndedError(Exception):
    """The process has ended before it answered."""


class Inspectors:
    """Processes are started when they are needed; one is kept for the next inspection."""

    def __init__(
        self,
        *,
        memory_bytes: int = MEMORY_BYTES,
        deadline_s: float = DEADLINE_S,
        module: str = "stoker.inspection.process",
    ) -> None:
        self._memory_bytes = memory_bytes
        self._deadline_s = deadline_s
        self._module = module
        self._slots = Slots(PLACES, GREED)
        self._idle: list[_Process] = []

    async def inspect(
        self, account: str, blobs: Blobs, files: Files, pipeline: str | None
    ) -> Inspection:
        """Inspect files that were uploaded.

        Raises `InspectionError` where they are refused, `InspectorError` where they could not be
        read, and as `Blobs.read` does.
        """
        root = str(blobs.root) if isinstance(blobs, Folder) else ""
        ask = Ask(root, dict(files), pipeline)
        async with self._slots.hold(account):
            found = await self._found(ask, _Ahead(blobs, files).read)
        if found.inspection is not None:
            return found.inspection
        if found.code is not None:
            raise InspectionError(FailureCode(found.code), found.message, found.path)
        if found.is_out_of_memory:
            raise _too_complex(f"more than {self._memory_bytes >> 20} MiB of memory")
        raise InspectorError(found.trouble)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for process in idle:
            await process.end()

    async def _found(self, ask: Ask, read: "_Read") -> Found:
        for _ in range(_TRIES):
            process = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(self._deadline_s) as deadline:
                    found = await process.ask(ask, _untimed(read, deadline))
            except TimeoutError:
                await process.end()
                raise _too_complex(f"longer than {self._deadline_s:g} s") from None
            except _EndedError:
                # Whoever ended it: of files that do so every time, it is told.
                await process.end()
                continue
            except BaseException:
                await process.end()
                raise
            is_kept = found.peak_bytes <= _KEPT_BYTES and not found.is_out_of_memory
            if is_kept and len(self._idle) < _KEPT_IDLE:
                self._idle.append(process)
            else:
                await process.end()
            return found
        log.warning("inspection has ended its process", extra={"times": _TRIES})
        return Found(is_out_of_memory=True)

    async def _start(self) -> "_Process":
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT_ENV or name.startswith("PYTHON")
        }
        process = _Process(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=kept,
                # What is typed to end the server is not typed for it.
                start_new_session=True,
            )
        )
        process.send(Limits(self._memory_bytes))
        return process


_Read = Callable[[Wanted], Awaitable[bytes]]


class _Ahead:
    """Reads a little more than is wanted: headers and text are asked for piece by piece."""

    def __init__(self, blobs: Blobs, files: Files) -> None:
        self._blobs = blobs
        self._files = files
        self._path, self._begin, self._block = "", 0, b""

    async def read(self, wanted: Wanted) -> bytes:
        start = wanted.offset - self._begin
        there = wanted.path == self._path and 0 <= start <= len(self._block) - wanted.length
        if not there:
            key, size = self._files[wanted.path]
            length = max(wanted.length, _AHEAD_BYTES)
            self._block = await self._blobs.read(key, size, wanted.offset, length)
            self._path, self._begin, start = wanted.path, wanted.offset, 0
        return self._block[start : start + wanted.length]


def _untimed(read: _Read, deadline: asyncio.Timeout) -> _Read:
    """What a store takes, which has bounds of its own, says nothing of the files."""

    async def reading(wanted: Wanted) -> bytes:
        loop, before = asyncio.get_running_loop(), deadline.when()
        left = None if before is None else before - loop.time()
        deadline.reschedule(None)
        try:
            return await read(wanted)
        finally:
            deadline.reschedule(None if left is None else loop.time() + left)

    return reading


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, message: msgspec.Struct) -> None:
        if self._process.stdin:
            self._process.stdin.write(frame(message))

    async def ask(self, ask: Ask, read: _Read) -> Found:
        """Raises `_EndedError`, and as `read` does."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise _EndedError
        try:
            self.send(ask)
            await stdin.drain()
            found = await _answer(stdout)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise _EndedError from error
        while found.wanted:
            content = await read(found.wanted)
            try:
                stdin.write(framed(content))
                await stdin.drain()
                found = await _answer(stdout)
            except (OSError, asyncio.IncompleteReadError) as error:
                raise _EndedError from error
        return found

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


async def _answer(stdout: asyncio.StreamReader) -> Found:
    (length,) = LENGTH.unpack(await stdout.readexactly(LENGTH.size))
    return msgspec.json.decode(await stdout.readexactly(length), type=Found)


def _too_complex(what: str) -> InspectionError:
    return InspectionError(
        FailureCode.TOO_COMPLEX,
        f"Inspecting these files takes {what}. Leave out what the model does not need.",
    )
