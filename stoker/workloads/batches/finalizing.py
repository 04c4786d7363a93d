"""Concatenates the parts of a batch into its output file and its error file."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

from stoker.base.ids import Prefix, new_id
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.outage import lost_store_reported
from stoker.store import db
from stoker.store.blobs import Blobs
from stoker.store.tables.batches import Batch, BatchPart
from stoker.store.tables.files import File, Purpose
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.line_calls import Halt, unreached
from stoker.workloads.batches.lines import CUSTOM_ID, read_lines
from stoker.workloads.batches.parts import done_lines

DEFAULT_KEEP_S = 30 * 24 * 3600
_MIB = 1 << 20
_MOST_UNREACHED_BYTES = 4096
"""Upper bound of the bytes of an unreached request's line."""
_UNREACHED = {
    Halt.EXPIRED: (
        "batch_expired",
        "The request could not be executed before the completion window expired.",
    ),
    Halt.CANCELLED: (
        "batch_cancelled",
        "The batch was cancelled before the request was executed.",
    ),
    Halt.DELETED: (
        "deployment_deleted",
        "The deployment was deleted before the request was executed.",
    ),
}


@dataclass(frozen=True)
class ResultFiles:
    output: File | None
    error: File | None
    unreached: int
    """Lines that were not computed, all of which are in the error file."""

    @property
    def files(self) -> list[File]:
        return [file for file in (self.output, self.error) if file]


async def write_results(
    context: BatchContext, row: Batch, parts: Sequence[BatchPart], source: File | None
) -> ResultFiles:
    """Writes the result files. The caller adds their rows to its transaction, or discards them.

    Args:
        source: the input file, for the ids of unreached lines. None if it was deleted.

    Raises `InputLostError`, and `CapacityError` if the store does not answer or the disk is full.
    """
    output_bytes = sum(part.output_bytes for part in parts)
    error_bytes = sum(part.error_bytes for part in parts)
    remaining = row.total - row.completed - row.failed if source and row.ending else 0
    output = error = None
    try:
        if output_bytes:
            blocks = _outputs(context.blobs, parts)
            output = await _write(context, row, "output", blocks, output_bytes)
        if error_bytes or remaining:
            most_bytes = error_bytes + remaining * _MOST_UNREACHED_BYTES
            blocks = _errors(context, row, parts, source if remaining else None)
            error = await _write(context, row, "error", blocks, most_bytes)
    except BaseException:
        if output:
            context.blobs.discard(output.blob_key)
        raise
    return ResultFiles(output, error, remaining)


async def _write(
    context: BatchContext, row: Batch, kind: str, blocks: AsyncGenerator[bytes], most_bytes: int
) -> File:
    context.quotas.check_disk(most_bytes)
    now = db.now()
    file = File(
        id=new_id(Prefix.FILE),
        account_id=row.account_id,
        deployment_id=row.deployment_id,
        key_id=row.key_id,
        owner_id=row.id,
        purpose=Purpose.BATCH_OUTPUT.value,
        content_type="application/octet-stream",
        filename=f"{row.id}_{kind}.jsonl",
        size=0,
        created_at=now,
        expires_at=now + timedelta(seconds=row.output_keep_s or DEFAULT_KEEP_S),
    )

    with full_disk_reported(), lost_store_reported():
        writer = context.blobs.writer()
        try:
            async with aclosing(blocks):
                async for block in blocks:
                    file.size += len(block)
                    await asyncio.to_thread(writer.write, block)
            await writer.finish(file.blob_key, file.content_type)
        finally:
            await writer.close()
    return file


async def _outputs(blobs: Blobs, parts: Sequence[BatchPart]) -> AsyncGenerator[bytes]:
    for part in parts:
        async for block in blobs.stream(part.blob_key, 0, part.output_bytes):
            yield block


async def _errors(
    context: BatchContext, row: Batch, parts: Sequence[BatchPart], source: File | None
) -> AsyncGenerator[bytes]:
    for part in parts:
        end = part.output_bytes + part.error_bytes
        async for block in context.blobs.stream(part.blob_key, part.output_bytes, end):
            yield block
    if source is None:
        return
    done = done_lines(parts)
    code, message = _UNREACHED[Halt(row.ending or "")]
    most_bytes = context.settings.batch_line_mib * _MIB
    async with aclosing(read_lines(context, source, most_bytes)) as blocks:
        async for lines in blocks:
            # Blocks are small, so this does not hold the event loop for long.
            yield b"".join(
                unreached(CUSTOM_ID.decode(line.content).custom_id, code, message)
                for line in lines
                if line.content is not None and line.number not in done
            )
