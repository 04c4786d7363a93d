"""The gateway's side of checks: a caller's schema is compiled and applied in a worker process."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stoker.base.errors import InvalidRequestError
from stoker.base.workers import WorkerDeadlineError, WorkerError, WorkerMemoryError, WorkerPool
from stoker.workloads.evaluation.checks.questions import Answer, Schemas

CPU_S = 2.0
"""CPU time of all schemas of a request, or of one answer; ordinary ones take milliseconds."""
DEADLINE_S = 60.0
"""Wall time of the same, on a machine that is busy with other things."""
MEMORY_BYTES = 1 << 30
"""Address space of one process; it takes 100 MiB before it reads anything."""
MOST_BYTES = 16 << 20
"""Largest answer that a check reads."""
_KEPT = 2

log = logging.getLogger(__name__)


class Judges:
    """A pool of processes that judge answers."""

    def __init__(self, module: str = "stoker.workloads.evaluation.checks.process") -> None:
        self._workers = WorkerPool(
            module, memory_bytes=MEMORY_BYTES, deadline_s=DEADLINE_S, cpu_s=CPU_S, kept=_KEPT
        )

    async def check_schemas(self, account: str, schemas: Mapping[str, dict[str, Any]]) -> None:
        """Raises `InvalidRequestError` for a schema that cannot be used.

        Args:
            schemas: by their places in the request.
        """
        if not schemas:
            return
        question = Schemas(json.dumps([*schemas.values()]).encode())
        try:
            found = await self._ask(account, question)
        except WorkerError as error:
            place = next(iter(schemas))
            raise InvalidRequestError(
                f"Compiling the JSON schemas {_why(error)}. Use fewer references, and "
                "shorter or fewer patterns.",
                param=place,
            ) from error
        for (place, _), why in zip(schemas.items(), found, strict=True):
            if why:
                raise InvalidRequestError(f"'{place}' {why}", param=place)

    async def failing(
        self, account: str, expect: Mapping[str, Any], content: bytes, *, is_written: bool
    ) -> str:
        """Returns what is not as expected of an answer with status 200; empty if all is.

        Args:
            expect: an `Expect`, as JSON, without what was not given.
        """
        if expect.keys() <= {"status"}:
            return ""
        if len(content) > MOST_BYTES:
            return f"The answer has {len(content)} bytes; a check reads at most {MOST_BYTES}."
        question = Answer(json.dumps(expect).encode(), content, is_written)
        try:
            (found,) = await self._ask(account, question)
        except WorkerError as error:
            return f"Comparing the answer with what is expected {_why(error)}."
        return found

    async def close(self) -> None:
        await self._workers.close()

    async def _ask(self, account: str, question: Schemas | Answer) -> Sequence[str]:
        """Raises `WorkerError`."""
        try:
            return json.loads(await self._workers.ask(account, msgspec.msgpack.encode(question)))
        except WorkerError as error:
            log.info("check could not be evaluated", extra={"why": str(error)})
            raise


def _why(error: WorkerError) -> str:
    if isinstance(error, WorkerMemoryError):
        return f"takes more than {MEMORY_BYTES >> 20} MiB of memory"
    if isinstance(error, WorkerDeadlineError):
        return f"takes {error}"
    return "fails: it is nested too deep"
