"""Where the parts of a file lie, and what is still missing of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.store.tables.artifacts import UploadFile, UploadPart


@dataclass(frozen=True)
class FileState:
    size: int | None
    """Bytes of the whole file: told by the client, or by a part that is shorter than the others."""
    received: int
    """Durable bytes without a gap, from the file's begin."""
    missing: int
    """Number of the first part that is not there."""
    complete: bool


def offset(number: int, part_size: int) -> int:
    """Where a part begins in its file."""
    return (number - 1) * part_size


def file_state(file: UploadFile, parts: Sequence[UploadPart], part_size: int) -> FileState:
    """What is there of a file, from its row and those of its parts in order."""
    received = 0
    missing = 1
    for part in parts:
        if part.number != missing:
            break
        received += part.size
        missing += 1
    size = file.size
    if size is None and parts and parts[-1].size < part_size:
        size = offset(parts[-1].number, part_size) + parts[-1].size
    # Without a size told, the parts there are make up the file, provided that there is no gap.
    whole = size if size is not None else sum(part.size for part in parts) or None
    return FileState(size, received, missing, not file.end_awaited and received == whole)


def by_file(
    files: Sequence[UploadFile], parts: Sequence[UploadPart], part_size: int
) -> Iterator[tuple[UploadFile, Sequence[UploadPart], FileState]]:
    """Each file of a session with its parts and its state."""
    grouped: dict[str, list[UploadPart]] = {}
    for part in parts:
        grouped.setdefault(part.path, []).append(part)
    for file in files:
        own = grouped.get(file.path, [])
        yield file, own, file_state(file, own, part_size)
