"""Computes the lines of one batch that no part contains, many at the same time."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from stoker.base.errors import CapacityError
from stoker.base.fairness import CURRENT_CALLER, Party, Tier
from stoker.inference.registry import OPERATIONS
from stoker.registry.deployments import repository as deployments
from stoker.runtime.interface import OnProgress
from stoker.store.tables.batches import Batch
from stoker.store.tables.files import File
from stoker.workloads.batches import repository
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.line_calls import Halt, Halting, LineCalls
from stoker.workloads.batches.lines import InputLine, InputLostError, read_lines
from stoker.workloads.batches.parts import (
    PART_BYTES,
    PART_S,
    BatchPartWriter,
    Buffer,
    LineAnswer,
    done_lines,
)

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between checks for a cancellation, the expiry, and a deletion of the deployment."""
_CLOSING_S = 10.0
"""Maximum seconds for writing the last part of a batch that is handed back."""
_MIB = 1 << 20


class BatchRun:
    """One server's work on the lines of a batch."""

    def __init__(self, context: BatchContext, row: Batch, on_progress: OnProgress) -> None:
        self._context = context
        self._row = row
        self._on_progress = on_progress
        self._halting = Halting()
        self._calls = LineCalls(context, row, OPERATIONS[row.endpoint], self._halting)
        self._done: set[int] = set()
        self._answered = 0
        self._buffer = Buffer()
        self._is_over = False
        self._changed = asyncio.Event()
        self._has_space = asyncio.Event()
        self._source: AsyncGenerator[Sequence[InputLine]] | None = None
        self._lines: Iterator[InputLine] = iter(())
        self._refilling = asyncio.Lock()

    async def run(self, file: File | None) -> Halting:
        """Computes lines until all have a durable answer, or the batch halts.

        Args:
            file: the input. None if it was deleted.
        """
        at_once = await self._lines_at_once()
        if at_once is None or file is None:
            self._halting.halt(Halt.DELETED if at_once is None else Halt.INPUT_LOST)
            return self._halting
        async with self._context.database.reading() as session:
            parts = await repository.parts(session, self._row.id)
        self._done = done_lines(parts)
        self._answered = len(self._done)
        self._tell()
        most_bytes = self._context.settings.batch_line_mib * _MIB
        self._source = read_lines(self._context, file, most_bytes)
        CURRENT_CALLER.set(Party(self._row.account_id, self._row.key, tier=Tier.FLEX))
        places = self._context.places.of(self._row.deployment_id, at_once)
        writer = BatchPartWriter(self._context, self._row, len(parts) + 1)
        writing = asyncio.create_task(self._write_parts(writer))
        try:
            async with contextlib.aclosing(self._source):
                await self._compute(places, at_once, writing)
        finally:
            self._is_over = True
            self._changed.set()
            # A worker that ends keeps the answers that it has.
            await _bounded(writing)
        return self._halting

    async def _compute(
        self, places: asyncio.Semaphore, at_once: int, writing: "asyncio.Task[None]"
    ) -> None:
        """Runs the workers. Raises `PartsLostError`."""
        workers = [asyncio.create_task(self._work(places)) for _ in range(at_once)]
        watch = asyncio.create_task(self._watch())
        everything = asyncio.gather(*workers)
        halted = asyncio.create_task(self._halting.event.wait())
        try:
            await asyncio.wait([everything, halted, writing], return_when="FIRST_COMPLETED")
            if writing.done():
                await writing
            if halted.done() and self._halting.reason is Halt.EXPIRED:
                return
            # Lines that are being computed end.
            await asyncio.wait([everything, writing], return_when="FIRST_COMPLETED")
            await (everything if everything.done() else writing)
        finally:
            ending: list[asyncio.Future[Any]] = [*workers, watch, halted]
            for task in ending:
                task.cancel()
            # Also retrieves the exceptions of workers.
            await asyncio.gather(*ending, everything, return_exceptions=True)

    async def _work(self, places: asyncio.Semaphore) -> None:
        while self._halting.reason is None:
            async with places:
                line = await self._next()
                answer = await self._calls.answer(line) if line else None
            if answer is None:
                return
            await self._keep(answer)

    async def _next(self) -> InputLine | None:
        """Returns the next line without a durable answer. None if there is none or the batch
        halts.
        """
        while self._halting.reason is None:
            for line in self._lines:
                if line.number not in self._done:
                    return line
            async with self._refilling:
                # Another worker may have filled it meanwhile.
                if (line := next(self._lines, None)) is not None:
                    if line.number not in self._done:
                        return line
                    continue
                if not await self._refill():
                    return None
        return None

    async def _refill(self) -> bool:
        """Reads the next lines. Returns False at the end of the file."""
        if self._source is None:
            return False
        try:
            block = await anext(self._source, None)
        except InputLostError:
            self._halting.halt(Halt.INPUT_LOST)
            return False
        except CapacityError as error:
            self._halting.halt(Halt.PAUSED, error)
            return False
        self._lines = iter(block or ())
        return block is not None

    async def _keep(self, answer: LineAnswer) -> None:
        """Adds an answer to the next part. Waits while two parts of answers wait for the store."""
        while self._buffer.size >= 2 * PART_BYTES:
            self._has_space.clear()
            await self._has_space.wait()
        self._buffer.add(answer)
        self._changed.set()

    async def _write_parts(self, writer: BatchPartWriter) -> None:
        """Writes answers in parts until the run is over. Raises `PartsLostError`."""
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            end = loop.time() + PART_S
            while not self._is_over and self._buffer.size < PART_BYTES and loop.time() < end:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await self._changed.wait()
            self._changed.clear()
            buffer, self._buffer = self._buffer, Buffer()
            self._has_space.set()
            if buffer.answers:
                await writer.write(buffer.answers)
                self._answered += len(buffer.answers)
                self._tell()
            if self._is_over and not self._buffer.answers:
                return

    def _tell(self) -> None:
        self._on_progress(self._answered / max(1, self._row.total))

    async def _watch(self) -> None:
        while True:
            if self._context.clock() >= self._row.expires_at:
                self._halting.halt(Halt.EXPIRED)
                return
            try:
                async with self._context.database.reading() as session:
                    is_cancelling = await repository.cancelling_at(session, self._row.id)
                if is_cancelling:
                    self._halting.halt(Halt.CANCELLED)
                elif await self._lines_at_once() is None:
                    self._halting.halt(Halt.DELETED)
            except Exception:
                log.exception("state of a batch could not be read; retrying")
            await asyncio.sleep(_LOOK_S)

    async def _lines_at_once(self) -> int | None:
        """Returns the number of lines to compute at the same time. None if the deployment was
        deleted.
        """
        row = self._row
        async with self._context.database.reading() as session:
            deployment = await deployments.get(session, row.account_id, row.deployment_id)
        if deployment is None:
            return None
        # Other calls have room in the queue.
        return max(1, min(self._context.settings.batch_lines_at_once, deployment.max_queue // 2))


async def _bounded(writing: "asyncio.Task[None]") -> None:
    """Waits until the last part is written. Raises `PartsLostError`."""
    task = asyncio.current_task()
    is_cancelled = task is not None and task.cancelling() > 0
    try:
        await asyncio.wait([writing], timeout=_CLOSING_S if is_cancelled else None)
    finally:
        writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
