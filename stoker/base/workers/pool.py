"""Server side of worker processes: a pool with places that are shared fairly between accounts."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable

import msgspec

from stoker.base.fairness import FairSemaphore
from stoker.base.module_command import module_command
from stoker.base.workers.messages import LENGTH, Reply, WorkerLimits, frame, framed

log = logging.getLogger(__name__)

PLACES, GREED = 4, 3
"""Number of places, and the greed that limits an account to three of them."""
_KEPT_BYTES = 256 << 20
"""Maximum resident memory, in bytes, of a process that is kept. Python returns little memory to the
kernel.
"""
_TRIES = 2
_KEPT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_TIMERS = frozenset({-signal.SIGPROF, -signal.SIGALRM})

Answer = Callable[[bytes], Awaitable[bytes]]
"""Answers a worker's request for data."""


class WorkerError(Exception):
    """Failure of a worker. The message is for the log."""


class WorkerDeadlineError(WorkerError):
    """Work that exceeds the pool's time limit."""


class WorkerMemoryError(WorkerError):
    """Work that exceeds the pool's memory limit, or ends its process each time."""


class _EndedError(Exception):
    """Process that ended before it answered."""


class WorkerPool:
    """Pool that starts worker processes on demand and keeps a few for the next question."""

    def __init__(
        self,
        module: str,
        *,
        memory_bytes: int,
        deadline_s: float,
        cpu_s: float | None = None,
        kept: int = 1,
    ) -> None:
        """
        Args:
            module: module with a `__main__` that calls `serve` of `stoker.base.workers.process`.
            memory_bytes: maximum address space of one process, in bytes.
            deadline_s: wall time limit of one question in seconds, without the time of the worker's
                own requests.
            cpu_s: CPU time limit of one question in seconds. More reliable than the deadline on a
                busy machine.
            kept: number of idle processes that are kept.
        """
        self._module = module
        self._limits = WorkerLimits(memory_bytes, cpu_s)
        self._deadline_s = deadline_s
        self._kept = kept
        self._slots = FairSemaphore(PLACES, GREED)
        self._idle: list[_Process] = []

    @property
    def memory_bytes(self) -> int:
        return self._limits.memory_bytes

    @property
    def time_limit_s(self) -> float:
        """Limit in seconds to name in an error: CPU time if it is limited, else wall time."""
        return self._limits.cpu_s or self._deadline_s

    async def ask(self, account: str, question: bytes, answer: Answer | None = None) -> bytes:
        """Returns the result of the worker's function for a question.

        Args:
            answer: answers the data requests of the worker.

        Raises:
            WorkerDeadlineError, WorkerMemoryError: the question exceeds a limit.
            WorkerError: the worker's function raised another error.
        """
        async with self._slots.hold(account):
            reply = await self._reply(question, answer)
        if reply.result is not None:
            return reply.result
        if reply.is_out_of_memory:
            raise WorkerMemoryError(f"more than {self.memory_bytes >> 20} MiB")
        raise WorkerError(reply.trouble)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for process in idle:
            await process.end()

    async def _reply(self, question: bytes, answer: Answer | None) -> Reply:
        for _ in range(_TRIES):
            process = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(self._deadline_s) as deadline:
                    reply = await process.ask(question, answer and _untimed(answer, deadline))
            except TimeoutError:
                await process.end()
                raise WorkerDeadlineError(f"longer than {self._deadline_s:g} s") from None
            except _EndedError:
                if await process.end() in _TIMERS:
                    raise WorkerDeadlineError(f"longer than {self.time_limit_s:g} s") from None
                # The question or an external cause ended the process. A second try shows which.
                continue
            except BaseException:
                await process.end()
                raise
            is_kept = reply.peak_bytes <= _KEPT_BYTES and not reply.is_out_of_memory
            if is_kept and len(self._idle) < self._kept:
                self._idle.append(process)
            else:
                await process.end()
            return reply
        log.warning(
            "request killed its worker process", extra={"worker": self._module, "times": _TRIES}
        )
        return Reply(is_out_of_memory=True)

    async def _start(self) -> "_Process":
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT_ENV or name.startswith("PYTHON")
        }
        process = _Process(
            await asyncio.create_subprocess_exec(
                *module_command(self._module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                # Ctrl-C in the terminal must reach only the server.
                start_new_session=True,
            )
        )
        process.send(self._limits)
        return process


def _untimed(answer: Answer, deadline: asyncio.Timeout) -> Answer:
    """Suspends a deadline during the worker's data requests, so that a slow store does not count
    against it.
    """

    async def answering(request: bytes) -> bytes:
        loop, before = asyncio.get_running_loop(), deadline.when()
        remaining_s = None if before is None else before - loop.time()
        deadline.reschedule(None)
        try:
            return await answer(request)
        finally:
            deadline.reschedule(None if remaining_s is None else loop.time() + remaining_s)

    return answering


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def send(self, message: msgspec.Struct) -> None:
        if self._process.stdin:
            self._process.stdin.write(frame(message))

    async def ask(self, question: bytes, answer: Answer | None) -> Reply:
        """Returns the worker's reply to a question. Raises `_EndedError` and the errors of
        `answer`.
        """
        reply = await self._exchange(question)
        while reply.request is not None:
            if answer is None:
                raise _EndedError
            reply = await self._exchange(await answer(reply.request))
        return reply

    async def _exchange(self, content: bytes) -> Reply:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise _EndedError
        try:
            stdin.write(framed(content))
            await stdin.drain()
            (length,) = LENGTH.unpack(await stdout.readexactly(LENGTH.size))
            return msgspec.msgpack.decode(await stdout.readexactly(length), type=Reply)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise _EndedError from error

    async def end(self) -> int:
        """Returns the exit status, negative for a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return await self._process.wait()
