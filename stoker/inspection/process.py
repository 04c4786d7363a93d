"""`python -m stoker.inspection.process`: inspects what it is asked to, within its memory.

What uploaded files cost to read is for this process to bear. It ends with its server, and the
server may end it at any time.
"""

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from stoker import sandbox
from stoker.inspection.failure import InspectionError
from stoker.inspection.inspector import inspect
from stoker.inspection.messages import LENGTH, Ask, Found, Limits, Wanted, frame
from stoker.store.blobs import Folder
from stoker.tasks.registry import PIPELINES

T = TypeVar("T")


def main() -> None:
    sandbox.die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Nobody writes between the frames but this loop.
    output = os.dup(1)
    os.dup2(2, 1)
    limits = _read(Limits)
    if limits is None:
        return
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    while (ask := _read(Ask)) is not None:
        _write(output, frame(_answer(ask, output)))


class _Sent:
    """Files of which the server sends what is wanted: this process has no way to a bucket."""

    def __init__(self, files: Mapping[str, tuple[str, int]], output: int) -> None:
        self._files = files
        self._output = output

    def sizes(self) -> Mapping[str, int]:
        return {path: size for path, (_, size) in self._files.items()}

    def read(self, path: str, offset: int, length: int) -> bytes:
        _write(self._output, frame(Found(wanted=Wanted(path, offset, length))))
        content = _content()
        if content is None:
            raise OSError("the server has ended")
        return content


def _answer(ask: Ask, output: int) -> Found:
    # The process is new where it was out of memory: nothing of what was read is kept.
    try:
        files = Folder(Path(ask.root)).files(ask.files) if ask.root else _Sent(ask.files, output)
        found = Found(inspection=inspect(files, ask.pipeline, PIPELINES), peak_bytes=_peak())
    except InspectionError as error:
        return Found(code=error.code, message=error.message, path=error.path, peak_bytes=_peak())
    except MemoryError:
        return Found(is_out_of_memory=True, peak_bytes=_peak())
    except Exception as error:
        return Found(trouble=repr(error), peak_bytes=_peak())
    return found


def _peak() -> int:
    # What `getrusage` tells is the server's where that was larger.
    status = Path("/proc/self/status").read_text().splitlines()
    kib = next((line.split()[1] for line in status if line.startswith("VmHWM:")), "0")
    return int(kib) * 1024


def _read(kind: type[T]) -> T | None:
    """The next frame; None at the end."""
    content = _content()
    return None if content is None else msgspec.json.decode(content, type=kind)


def _content() -> bytes | None:
    head = sys.stdin.buffer.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return sys.stdin.buffer.read(length)


def _write(output: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(output, view) :]


if __name__ == "__main__":
    main()
