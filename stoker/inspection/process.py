"""`python -m stoker.inspection.process`: worker of `Inspectors` that inspects uploaded files."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stoker.base.workers.process import Fetch, serve
from stoker.inspection.adapter_fit import load_adapter, why_other_base
from stoker.inspection.failure import InspectionError
from stoker.inspection.inspector import inspect
from stoker.inspection.merge_plan import UnmergeableError, plan, why_unmergeable
from stoker.inspection.messages import (
    Fit,
    FitRequest,
    InspectRequest,
    InspectResult,
    PlanRequest,
    Question,
    ReadRequest,
)
from stoker.models.tasks.registry import PIPELINES
from stoker.store.blobs import Folder


class _Sent:
    """Files that the server sends on request. This process has no access to a bucket."""

    def __init__(self, files: Mapping[str, tuple[str, int]], fetch: Fetch) -> None:
        self._files = files
        self._fetch = fetch

    def sizes(self) -> Mapping[str, int]:
        return {path: size for path, (_, size) in self._files.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._fetch(msgspec.json.encode(ReadRequest(path, offset, length)))


def answer(question: bytes, fetch: Fetch) -> bytes:
    """Answers a question. Raises the errors of reading a file."""
    try:
        reply = _answered(msgspec.json.decode(question, type=Question), fetch)
    except InspectionError as error:
        reply = InspectResult(code=error.code, message=error.message, path=error.path)
    return msgspec.json.encode(reply)


def _answered(asked: Question, fetch: Fetch) -> InspectResult:
    match asked:
        case InspectRequest(root, files, pipeline):
            reader = Folder(Path(root)).files(files) if root else _Sent(files, fetch)
            return InspectResult(inspection=inspect(reader, pipeline, PIPELINES))
        case FitRequest(adapter, base, why_unshared):
            return InspectResult(fit=_fit(_paths(adapter), Path(base), why_unshared))
        case PlanRequest(adapter, base, building, is_single):
            arguments = (_paths(adapter), Path(base), Path(building))
            try:
                return InspectResult(job=plan(*arguments, is_single=is_single))
            except UnmergeableError as error:
                return InspectResult(why_not=str(error))


def _fit(adapter: Mapping[str, Path], base: Path, why_unshared: str) -> Fit:
    lora = load_adapter(adapter)
    why_alone = why_unshared or lora.alone
    why = why_unmergeable(adapter, base) if why_alone else why_other_base(lora, base)
    return Fit(why_alone, why or "")


def _paths(given: Mapping[str, str]) -> dict[str, Path]:
    return {name: Path(path) for name, path in given.items()}


if __name__ == "__main__":
    serve(answer)
