"""The job of a batch. Each claim does one stage: validate, compute, or write the result files."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stoker.base.errors import InsufficientCreditsError, StokerError
from stoker.inference.registry import OPERATIONS
from stoker.platform.jobs.kind import Outcome, YieldedError
from stoker.platform.jobs.runner import PASSING
from stoker.platform.web.outage import lost_database
from stoker.registry.files import repository as file_rows
from stoker.registry.files import service as files
from stoker.runtime.interface import OnProgress
from stoker.store.db import Session
from stoker.store.tables.batches import Batch, BatchState
from stoker.store.tables.files import File
from stoker.store.tables.jobs import JobStatus
from stoker.workloads.batches import repository
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.finalizing import ResultFiles, write_results
from stoker.workloads.batches.line_calls import Halt
from stoker.workloads.batches.lines import InputLostError
from stoker.workloads.batches.parts import PartsLostError
from stoker.workloads.batches.running import BatchRun
from stoker.workloads.batches.validation import validate

log = logging.getLogger(__name__)

PAUSE = timedelta(seconds=5)
"""Time after which a paused batch tries again."""
_INPUT_LOST = {
    "code": "file_not_found",
    "message": "The input file was deleted or has expired before the batch ended.",
    "line": None,
    "param": "input_file_id",
}
_ENDED = {
    Halt.CANCELLED: BatchState.CANCELLED,
    Halt.EXPIRED: BatchState.EXPIRED,
    Halt.INPUT_LOST: BatchState.FAILED,
}
"""Maps the reasons that stop a batch to its last state. Other batches are completed."""


@dataclass(frozen=True)
class Stage:
    """Result of one stage."""

    values: Mapping[str, Any]
    """Columns of the batch."""
    is_last: bool = False
    results: list[File] = field(default_factory=list[File])


class BatchJob:
    """The `JobKind` of batches."""

    table = Batch

    def __init__(self, context: BatchContext) -> None:
        self._context = context

    async def perform(self, row: Batch, on_progress: OnProgress) -> Stage:
        try:
            return await self._stage(row, on_progress)
        except PartsLostError:
            raise YieldedError from None
        except (*PASSING, InsufficientCreditsError) as error:
            return self._paused(row, error)
        except Exception as error:
            if lost := lost_database(error):
                return self._paused(row, lost)
            raise

    async def _stage(self, row: Batch, on_progress: OnProgress) -> Stage:
        context = self._context
        async with context.database.reading() as session:
            cancelling_at = await repository.cancelling_at(session, row.id)
            file = await file_rows.by_id(session, row.input_file_id)
        if row.state == BatchState.FINALIZING:
            return await self._finalize(row, file)
        if cancelling_at:
            return self._finalizing(Halt.CANCELLED)
        if context.clock() >= row.expires_at:
            return self._finalizing(Halt.EXPIRED)
        if row.state == BatchState.VALIDATING:
            return await self._validate(row, file)
        context.calls.credits.check(row.account_id)
        halting = await BatchRun(context, row, on_progress).run(file)
        if halting.reason is Halt.PAUSED and halting.error:
            return self._paused(row, halting.error)
        return self._finalizing(halting.reason)

    async def _validate(self, row: Batch, file: File | None) -> Stage:
        if file is None:
            return _failed([_INPUT_LOST])
        try:
            valid = await validate(self._context, row, file, OPERATIONS[row.endpoint])
        except InputLostError:
            return _failed([_INPUT_LOST])
        if isinstance(valid, list):
            return _failed(valid)
        return Stage(
            {
                "state": BatchState.IN_PROGRESS.value,
                "in_progress_at": self._context.clock(),
                "deployment_id": valid.entry.deployment_id,
                "model": valid.entry.model,
                "total": valid.total,
                "paused": None,
            }
        )

    async def _finalize(self, row: Batch, file: File | None) -> Stage:
        async with self._context.database.reading() as session:
            parts = await repository.parts(session, row.id)
        ending = Halt(row.ending) if row.ending else None
        is_lost = ending is Halt.INPUT_LOST
        try:
            made = await write_results(self._context, row, parts, None if is_lost else file)
        except InputLostError:
            is_lost = True
            made = await write_results(self._context, row, parts, None)
        state = BatchState.COMPLETED if ending is None else _ENDED.get(ending, BatchState.COMPLETED)
        is_lost = is_lost or (made.unreached == 0 and _is_partial(row))
        return Stage(
            _final_values(row, made, BatchState.FAILED if is_lost else state, is_lost),
            is_last=True,
            results=made.files,
        )

    def _finalizing(self, reason: Halt | None) -> Stage:
        return Stage(
            {
                "state": BatchState.FINALIZING.value,
                "finalizing_at": self._context.clock(),
                "ending": reason.value if reason else None,
                "paused": None,
            }
        )

    def _paused(self, row: Batch, error: StokerError) -> Stage:
        now = self._context.clock()
        later = now + PAUSE
        return Stage(
            {
                "paused": {"code": error.code, "message": error.message},
                "not_before": row.expires_at if now < row.expires_at < later else later,
            }
        )

    def outcome(self, row: Batch, made: Stage) -> Outcome:
        # The next stage is due at once.
        return Outcome(made.values, waits_as=None if made.is_last else JobStatus.QUEUED.value)

    async def keep(self, session: Session, row: Batch, made: Stage) -> None:
        session.add_all(made.results)
        if not made.is_last:
            session.after_commit(self._context.jobs.wake)

    async def ended(self, session: Session, row: Batch, error: StokerError | None) -> None:
        if error:
            fault = {"code": error.code, "message": error.message, "line": None, "param": None}
            await repository.set_failed(session, row.id, [fault])
        parts = await repository.parts(session, row.id)
        await repository.delete_parts(session, row.id)

        def remove() -> None:
            for part in parts:
                self._context.blobs.discard(part.blob_key)

        session.after_commit(remove)

    async def discard(self, made: Stage) -> None:
        await files.discard(self._context.blobs, made.results)


def _failed(faults: list[dict[str, Any]]) -> Stage:
    return Stage({"state": BatchState.FAILED.value, "errors": faults, "paused": None}, is_last=True)


def _is_partial(row: Batch) -> bool:
    return row.completed + row.failed < row.total


def _final_values(
    row: Batch, made: ResultFiles, state: BatchState, is_lost: bool
) -> dict[str, Any]:
    return {
        "state": state.value,
        "errors": [_INPUT_LOST] if is_lost else None,
        "failed": row.failed + made.unreached,
        "output_file_id": made.output.id if made.output else None,
        "error_file_id": made.error.id if made.error else None,
        "paused": None,
    }
