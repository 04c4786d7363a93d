"""Inspection in worker processes, with limits on number, memory and time, shared fairly by
accounts.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stoker.base.workers import WorkerDeadlineError, WorkerError, WorkerMemoryError, WorkerPool
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.inspector import Inspection
from stoker.inspection.merge_plan import UnmergeableError
from stoker.inspection.messages import (
    Fit,
    FitRequest,
    InspectRequest,
    InspectResult,
    PlanRequest,
    Question,
    ReadRequest,
)
from stoker.models.adapters.merge_job import MergeJob
from stoker.store.blobs import Blobs, Files, Folder

MEMORY_BYTES = 2 << 30
"""Address space of one process in bytes. The largest tokenizers take a quarter of it."""
DEADLINE_S = 120.0
"""Longest inspection in seconds. A large model takes one second."""
_AHEAD_BYTES = 4 << 20


class InspectorError(Exception):
    """The files could not be read. This says nothing about their content."""


class Inspectors:
    """Pool of inspecting processes."""

    def __init__(
        self,
        *,
        memory_bytes: int = MEMORY_BYTES,
        deadline_s: float = DEADLINE_S,
        module: str = "stoker.inspection.process",
    ) -> None:
        self._deadline_s = deadline_s
        self._workers = WorkerPool(module, memory_bytes=memory_bytes, deadline_s=deadline_s)

    async def inspect(
        self, account: str, blobs: Blobs, files: Files, pipeline: str | None
    ) -> Inspection:
        """Inspects uploaded files.

        Raises `InspectionError` if they are rejected, `InspectorError` if they could not be read,
        and the errors of `Blobs.read`.
        """
        root = str(blobs.root) if isinstance(blobs, Folder) else ""
        reply = await self._found(
            account, InspectRequest(root, dict(files), pipeline), _Ahead(blobs, files)
        )
        if reply.inspection is None:
            raise InspectorError("the process sent no answer")
        return reply.inspection

    async def fit(
        self, account: str, adapter: Mapping[str, Path], base: Path, why_unshared: str
    ) -> Fit:
        """Compares an adapter with a base by their headers.

        Args:
            adapter: its two files, by their names.
            why_unshared: why no adapter shares the base's replicas; empty if any may.

        Raises `InspectionError` if it is not an adapter, and `InspectorError`.
        """
        reply = await self._found(account, FitRequest(_named(adapter), str(base), why_unshared))
        if reply.fit is None:
            raise InspectorError("the process sent no answer")
        return reply.fit

    async def plan_merge(
        self,
        account: str,
        adapter: Mapping[str, Path],
        base: Path,
        building: Path,
        *,
        is_single: bool,
    ) -> MergeJob:
        """Returns a plan for writing a base with a merged adapter into a folder.

        Raises `UnmergeableError`, `InspectionError`, and `InspectorError`.
        """
        ask = PlanRequest(_named(adapter), str(base), str(building), is_single)
        reply = await self._found(account, ask)
        if reply.job is None:
            raise UnmergeableError(reply.why_not)
        return reply.job

    async def close(self) -> None:
        await self._workers.close()

    async def _found(
        self, account: str, question: Question, ahead: "_Ahead | None" = None
    ) -> InspectResult:
        answer = ahead.answer if ahead else None
        try:
            content = await self._workers.ask(account, msgspec.json.encode(question), answer)
        except WorkerDeadlineError:
            raise _too_complex(f"longer than {self._deadline_s:g} s") from None
        except WorkerMemoryError:
            mib = self._workers.memory_bytes >> 20
            raise _too_complex(f"more than {mib} MiB of memory") from None
        except WorkerError as error:
            raise InspectorError(str(error)) from error
        reply = msgspec.json.decode(content, type=InspectResult)
        if reply.code is not None:
            raise InspectionError(FailureCode(reply.code), reply.message, reply.path)
        return reply


class _Ahead:
    """Read-ahead buffer: headers and text are requested piece by piece."""

    def __init__(self, blobs: Blobs, files: Files) -> None:
        self._blobs = blobs
        self._files = files
        self._path, self._begin, self._block = "", 0, b""

    async def answer(self, request: bytes) -> bytes:
        return await self.read(msgspec.json.decode(request, type=ReadRequest))

    async def read(self, wanted: ReadRequest) -> bytes:
        start = wanted.offset - self._begin
        is_buffered = wanted.path == self._path and 0 <= start <= len(self._block) - wanted.length
        if not is_buffered:
            key, size = self._files[wanted.path]
            length = max(wanted.length, _AHEAD_BYTES)
            self._block = await self._blobs.read(key, size, wanted.offset, length)
            self._path, self._begin, start = wanted.path, wanted.offset, 0
        return self._block[start : start + wanted.length]


def _named(paths: Mapping[str, Path]) -> dict[str, str]:
    return {name: str(path) for name, path in paths.items()}


def _too_complex(what: str) -> InspectionError:
    return InspectionError(
        FailureCode.TOO_COMPLEX,
        f"Inspecting these files takes {what}. Leave out what the model does not need.",
    )
