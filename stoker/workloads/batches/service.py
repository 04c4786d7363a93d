"""Batches: files of requests that are answered in the background, each line once."""

from datetime import datetime, timedelta
from typing import Any

from stoker.base.errors import ConflictError, InvalidRequestError, NotFoundError, nearest
from stoker.base.ids import Prefix, new_id
from stoker.inference.operation import JSON, Operation
from stoker.inference.registry import OPERATIONS
from stoker.platform.quotas.limits import Quota
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.files import service as files
from stoker.store.db import Session
from stoker.store.tables.batches import Batch, BatchState
from stoker.store.tables.files import Purpose
from stoker.store.tables.jobs import JobStatus
from stoker.tenancy.keys.auth import Reach
from stoker.workloads.batches import repository, schemas
from stoker.workloads.batches.context import BatchContext

KEPT = timedelta(days=30)
"""Time for which an ended batch is kept."""
WINDOW = timedelta(hours=24)
_OPEN = (BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING)


def check_endpoint(path: str) -> None:
    """Raises `InvalidRequestError` for an endpoint that a batch cannot call."""
    operation = OPERATIONS.get(path)
    if operation is None:
        close = nearest(path, (path for path in OPERATIONS if _answers_json(OPERATIONS[path])))
        raise InvalidRequestError(
            f"'{path}' is not an endpoint that runs a model."
            + (f" Did you mean '{close}'?" if close else ""),
            param="endpoint",
        )
    if not _answers_json(operation):
        raise InvalidRequestError(
            f"A batch stores answers in JSON, but '{path}' answers with files. Endpoints for text "
            "work, such as /v1/chat/completions and /v1/embeddings.",
            param="endpoint",
        )


def _answers_json(operation: Operation[Any]) -> bool:
    # The answer of a task is JSON.
    return not operation.answers or JSON in operation.answers


async def create(
    session: Session,
    context: BatchContext,
    caller: Principal,
    body: schemas.BatchCreate,
) -> Batch:
    covered = caller.deployment_ids if caller.scope is Scope.DEPLOYMENT else None
    reach = Reach(caller.account_id or "", covered, caller.key_id)
    file = await files.get(session, reach, body.input_file_id)
    if file.purpose != Purpose.BATCH:
        raise InvalidRequestError(
            f"The file has the purpose '{file.purpose}'. Upload it with the purpose 'batch'.",
            param="input_file_id",
        )
    await context.quotas.take(session, reach.account_id, Quota.BATCHES)
    now, expiry = context.clock(), body.output_expires_after
    row = Batch(
        id=new_id(Prefix.BATCH),
        account_id=reach.account_id,
        # Known after the validation.
        deployment_id="",
        key_id=caller.key_id,
        key=caller.public_id,
        deployment_ids=None if covered is None else sorted(covered),
        state=BatchState.VALIDATING.value,
        endpoint=body.endpoint,
        input_file_id=file.id,
        custom_metadata=body.metadata,
        output_keep_s=expiry.seconds if expiry else None,
        total=0,
        completed=0,
        failed=0,
        input_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        reasoning_tokens=0,
        usage_rows={},
        expires_at=now + WINDOW,
        status=JobStatus.QUEUED.value,
        progress=0.0,
        tries=0,
        losses=0,
        created_at=now,
    )
    session.add(row)
    return row


def response(row: Batch) -> schemas.Batch:
    state = BatchState(row.state)
    is_open = state in _OPEN
    ended = _seconds(row.completed_at)
    faults = [schemas.BatchFault(**fault) for fault in row.errors or ()]
    return schemas.Batch(
        id=row.id,
        endpoint=row.endpoint,
        model=row.model,
        errors=schemas.BatchErrors(data=faults) if faults else None,
        input_file_id=row.input_file_id,
        status=(
            schemas.BatchStatus.CANCELLING
            if is_open and row.cancelling_at
            else schemas.BatchStatus(row.state)
        ),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=int(row.created_at.timestamp()),
        in_progress_at=_seconds(row.in_progress_at),
        expires_at=int(row.expires_at.timestamp()),
        finalizing_at=_seconds(row.finalizing_at),
        completed_at=ended if state is BatchState.COMPLETED else None,
        failed_at=ended if state is BatchState.FAILED else None,
        expired_at=ended if state is BatchState.EXPIRED else None,
        cancelling_at=_seconds(row.cancelling_at),
        cancelled_at=ended if state is BatchState.CANCELLED else None,
        request_counts=schemas.BatchCounts(
            total=row.total, completed=row.completed, failed=row.failed
        ),
        usage=schemas.BatchUsage(
            input_tokens=row.input_tokens,
            input_tokens_details=schemas.BatchInputDetails(cached_tokens=row.cached_tokens),
            output_tokens=row.output_tokens,
            output_tokens_details=schemas.BatchOutputDetails(reasoning_tokens=row.reasoning_tokens),
            total_tokens=row.input_tokens + row.output_tokens,
        ),
        metadata=row.custom_metadata,
        paused=schemas.BatchPause(**row.paused) if is_open and row.paused else None,
    )


def _seconds(moment: datetime | None) -> int | None:
    return int(moment.timestamp()) if moment else None


async def get(session: Session, reach: Reach, batch_id: str, *, lock: bool = False) -> Batch:
    row = await repository.get(session, reach, batch_id, lock=lock)
    if row is None:
        raise NotFoundError("Batch not found", code="batch_not_found")
    return row


def cancel(session: Session, context: BatchContext, row: Batch) -> None:
    """Requests a cancellation. Lines that are being computed end first.

    Raises `ConflictError` if the batch has ended otherwise.
    """
    state = BatchState(row.state)
    if state not in _OPEN and state is not BatchState.CANCELLED:
        raise ConflictError(f"The batch is {state}, so it cannot be cancelled.", code="batch_ended")
    if state in (BatchState.VALIDATING, BatchState.IN_PROGRESS) and row.cancelling_at is None:
        row.cancelling_at = context.clock()
        # A paused batch ends at once.
        row.not_before = None
        session.after_commit(context.jobs.wake)


async def forget_ended(platform: Platform, now: datetime) -> None:
    async with platform.database.transaction() as session:
        await repository.forget_ended(session, now - KEPT)
