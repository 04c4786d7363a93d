"""Parts: durable answers to some lines of a batch.

The bytes are written first. One transaction then adds the part's row, the batch's counts and the
counts of usage, if the server still holds the batch's lease.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from stoker.base.errors import StokerError
from stoker.base.fairness import Tier
from stoker.base.ids import Prefix, made_at, new_id
from stoker.platform.web.disk import full_disk_reported
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.files.service import STRAY_AFTER
from stoker.runtime.listening import Served
from stoker.runtime.metering import HOUR_MS
from stoker.store.blobs import Blobs
from stoker.store.db import Database, Session
from stoker.store.tables.batches import Batch, BatchPart
from stoker.store.tables.usage import UsageCount
from stoker.tenancy.usage.counts import NAMES, amounts
from stoker.workloads.batches import repository
from stoker.workloads.batches.context import BatchContext

log = logging.getLogger(__name__)

BLOBS = "batches/"
PART_BYTES = 4 << 20
"""Bytes of answers that are written at once."""
PART_S = 2.0
"""Maximum seconds from an answer to its durability."""
_RETRY_FIRST_S, _RETRY_LAST_S = 0.5, 15.0
_AT_ONCE = 500


@dataclass(frozen=True)
class LineAnswer:
    """Answer to one line."""

    number: int
    text: bytes
    """Line of the output or error file."""
    is_error: bool
    served: Sequence[Served] = ()
    """Calls that computed the answer."""
    cached_tokens: int = 0
    reasoned_tokens: int = 0


@dataclass
class Buffer:
    """Answers that are not durable yet."""

    answers: list[LineAnswer] = field(default_factory=list[LineAnswer])
    size: int = 0

    def add(self, answer: LineAnswer) -> None:
        self.answers.append(answer)
        self.size += len(answer.text)


class PartsLostError(Exception):
    """Raised if another worker holds the batch. The answers are dropped."""


class BatchPartWriter:
    """Writes the parts of one batch. Valid only while its server holds the batch's lease."""

    def __init__(self, context: BatchContext, row: Batch, next_number: int) -> None:
        self._context = context
        self._row = row
        self._number = next_number

    async def write(self, answers: Sequence[LineAnswer]) -> None:
        """Writes answers as one part. Retries until the store and the database answer.

        Raises `PartsLostError`.
        """
        ordered = sorted(answers, key=lambda answer: answer.number)
        outputs = [answer.text for answer in ordered if not answer.is_error]
        errors = [answer.text for answer in ordered if answer.is_error]
        part = BatchPart(
            id=new_id(Prefix.BATCH_PART),
            batch_id=self._row.id,
            number=self._number,
            lines=ranges(answer.number for answer in ordered),
            output_bytes=sum(map(len, outputs)),
            error_bytes=sum(map(len, errors)),
        )
        content = b"".join([*outputs, *errors])
        delay_s = _RETRY_FIRST_S
        is_stored = False
        while True:
            try:
                if not is_stored:
                    await self._put(part, content)
                    is_stored = True
                await self._commit(part, ordered, len(outputs), len(errors))
            except PartsLostError:
                self._context.blobs.discard(part.blob_key)
                raise
            except Exception as error:
                why = error.code if isinstance(error, StokerError) else repr(error)
                log.warning(
                    "part of a batch could not be written; retrying",
                    extra={"batch": self._row.id, "why": why},
                )
                await asyncio.sleep(delay_s)
                delay_s = min(_RETRY_LAST_S, 2 * delay_s)
            else:
                self._number += 1
                return

    async def _put(self, part: BatchPart, content: bytes) -> None:
        self._context.quotas.check_disk(len(content))
        with full_disk_reported(), lost_store_reported():
            await self._context.blobs.put(part.blob_key, content, "application/jsonl")

    async def _commit(
        self, part: BatchPart, answers: Sequence[LineAnswer], completed: int, failed: int
    ) -> None:
        row = self._row
        async with self._context.database.transaction() as session:
            # The outcome of an earlier commit may be unknown.
            if await repository.has_part(session, part.id):
                fresh = await session.get(Batch, row.id)
                usage_rows = fresh.usage_rows if fresh else row.usage_rows
            else:
                usage_rows = await self._add(session, part, answers, completed, failed)
        row.usage_rows = usage_rows
        row.tries, row.losses = 1, 0

    async def _add(
        self,
        session: Session,
        part: BatchPart,
        answers: Sequence[LineAnswer],
        completed: int,
        failed: int,
    ) -> dict[str, str]:
        row = self._row
        counted = _counted(call for answer in answers for call in answer.served)
        tokens = Counter[str]()
        for values in counted.values():
            tokens.update(values)
        hour = time.time_ns() // 1_000_000 // HOUR_MS
        usage_rows = dict(row.usage_rows)
        for version_id in counted:
            usage_rows.setdefault(f"{version_id}:{hour}", new_id(Prefix.USAGE))
        is_held = await repository.write(
            session,
            row,
            completed=Batch.completed + completed,
            failed=Batch.failed + failed,
            input_tokens=Batch.input_tokens + tokens["input_tokens"],
            output_tokens=Batch.output_tokens + tokens["output_tokens"],
            cached_tokens=Batch.cached_tokens + sum(item.cached_tokens for item in answers),
            reasoning_tokens=Batch.reasoning_tokens + sum(item.reasoned_tokens for item in answers),
            usage_rows=usage_rows,
            paused=None,
            # A batch that advances is not one that kills its server.
            tries=1,
            losses=0,
        )
        if not is_held:
            raise PartsLostError
        session.add(
            BatchPart(
                id=part.id,
                batch_id=part.batch_id,
                number=part.number,
                lines=part.lines,
                output_bytes=part.output_bytes,
                error_bytes=part.error_bytes,
            )
        )
        ids = {version_id: usage_rows[f"{version_id}:{hour}"] for version_id in counted}
        known = await repository.usage_rows(session, ids.values())
        for version_id, values in counted.items():
            count = known.get(ids[version_id])
            if count is None:
                count = UsageCount(
                    id=ids[version_id],
                    account_id=row.account_id,
                    deployment_id=row.deployment_id,
                    version_id=version_id or None,
                    key_id=row.key_id,
                    tier=Tier.FLEX.value,
                    model=row.model or "",
                    hour=hour,
                    **dict.fromkeys(NAMES, 0),
                )
                session.add(count)
            for name, value in values.items():
                setattr(count, name, getattr(count, name) + value)
        return usage_rows


def _counted(calls: Iterable[Served]) -> dict[str, Counter[str]]:
    """Returns the counts of calls by version."""
    counted: dict[str, Counter[str]] = {}
    for call in calls:
        counted.setdefault(call.version_id, Counter()).update(amounts(call))
    return counted


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Returns ascending numbers as ranges with their first and last number."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def done_lines(parts: Iterable[BatchPart]) -> set[int]:
    """Returns the numbers of the lines that parts contain."""
    return {
        number for part in parts for first, last in part.lines for number in range(first, last + 1)
    }


async def sweep_strays(database: Database, blobs: Blobs, now: datetime) -> None:
    """Removes bytes of parts without a row. Their server was killed in between, or the batch was
    deleted.
    """
    before = now - STRAY_AFTER
    listed = [blob async for some in blobs.listed(BLOBS) for blob in some]
    # A part may be written long after its id was made.
    keys = {blob.key.rpartition("/")[2]: blob.key for blob in listed if blob.modified_at < before}
    old = [name for name in keys if (made_at(name) or time.time()) < before.timestamp()]
    for start in range(0, len(old), _AT_ONCE):
        some = old[start : start + _AT_ONCE]
        async with database.reading() as session:
            known = await repository.known_parts(session, some)
        for name in set(some) - known:
            await blobs.remove(keys[name])
