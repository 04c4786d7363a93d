"""`python -m stoker.inspection.process`: inspects uploaded files, as a worker of `Inspectors`."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stoker.inspection.failure import InspectionError
from stoker.inspection.inspector import inspect
from stoker.inspection.messages import Ask, Found, Wanted
from stoker.store.blobs import Folder
from stoker.tasks.registry import PIPELINES
from stoker.workers.process import Fetch, serve


class _Sent:
    """Files that the server sends on request: this process has no access to a bucket."""

    def __init__(self, files: Mapping[str, tuple[str, int]], fetch: Fetch) -> None:
        self._files = files
        self._fetch = fetch

    def sizes(self) -> Mapping[str, int]:
        return {path: size for path, (_, size) in self._files.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._fetch(msgspec.json.encode(Wanted(path, offset, length)))


def answer(question: bytes, fetch: Fetch) -> bytes:
    """Raises what reading a file raises."""
    ask = msgspec.json.decode(question, type=Ask)
    files = Folder(Path(ask.root)).files(ask.files) if ask.root else _Sent(ask.files, fetch)
    try:
        found = Found(inspection=inspect(files, ask.pipeline, PIPELINES))
    except InspectionError as error:
        found = Found(code=error.code, message=error.message, path=error.path)
    return msgspec.json.encode(found)


if __name__ == "__main__":
    serve(answer)
