"""Gateway's side of checks. A caller's schema is compiled and applied in a worker process."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stoker.base.errors import InvalidRequestError
from stoker.base.workers import WorkerDeadlineError, WorkerError, WorkerMemoryError, WorkerPool
from stoker.workloads.evaluation.checks.questions import CheckSchemas, CompareAnswer

CPU_S = 2.0
"""CPU time in seconds for all schemas of a request, or for one answer. Ordinary ones take
milliseconds.
"""
DEADLINE_S = 60.0
"""Wall time in seconds for the same work, on a machine that is busy."""
MEMORY_BYTES = 1 << 30
"""Address space in bytes of one process. It uses 100 MiB before it reads anything."""
MOST_BYTES = 16 << 20
"""Largest answer in bytes that a check reads."""
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
            schemas: the schemas by their places in the request.
        """
        if not schemas:
            return
        question = CheckSchemas(json.dumps([*schemas.values()]).encode())
        try:
            reasons = await self._ask(account, question)
        except WorkerError as error:
            place = next(iter(schemas))
            raise InvalidRequestError(
                f"Compiling the JSON schemas {_why(error)}. Use fewer references, and "
                "shorter or fewer patterns.",
                param=place,
            ) from error
        for (place, _), why in zip(schemas.items(), reasons, strict=True):
            if why:
                raise InvalidRequestError(f"'{place}' {why}", param=place)

    async def failing(
        self, account: str, expect: Mapping[str, Any], content: bytes, *, is_written: bool
    ) -> str:
        """Returns how an answer with status 200 differs from its expectations. Returns an empty
        text if it does not.

        Args:
            expect: an `Expect`, as JSON, without fields that are not set.
        """
        if expect.keys() <= {"status"}:
            return ""
        if len(content) > MOST_BYTES:
            return f"The answer has {len(content)} bytes; a check reads at most {MOST_BYTES}."
        question = CompareAnswer(json.dumps(expect).encode(), content, is_written)
        try:
            (difference,) = await self._ask(account, question)
        except WorkerError as error:
            return f"Comparing the answer with the expectation {_why(error)}."
        return difference

    async def close(self) -> None:
        await self._workers.close()

    async def _ask(self, account: str, question: CheckSchemas | CompareAnswer) -> Sequence[str]:
        """Sends a question to a worker process. Raises `WorkerError`."""
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
