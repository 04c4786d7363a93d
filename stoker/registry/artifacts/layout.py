"""Positions of a file's parts, and its missing bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.store.tables.artifacts import UploadFile, UploadPart


@dataclass(frozen=True)
class FileState:
    size: int | None
    """Size of the whole file in bytes. Declared by the client, or derived from a part that is
    shorter than the others.
    """
    received: int
    """Number of durable bytes from the start of the file up to the first gap."""
    missing: int
    """Number of the first missing part."""
    complete: bool


def offset(number: int, part_size: int) -> int:
    """Returns the offset of a part in its file, in bytes."""
    return (number - 1) * part_size


def file_state(file: UploadFile, parts: Sequence[UploadPart], part_size: int) -> FileState:
    """Returns the state of a file, from its row and the rows of its parts in order."""
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
    # If no size was declared, the received parts make up the file, provided that they have no gap.
    whole = size if size is not None else sum(part.size for part in parts) or None
    return FileState(size, received, missing, not file.end_awaited and received == whole)


def by_file(
    files: Sequence[UploadFile], parts: Sequence[UploadPart], part_size: int
) -> Iterator[tuple[UploadFile, Sequence[UploadPart], FileState]]:
    """Yields each file of a session with its parts and its state."""
    grouped: dict[str, list[UploadPart]] = {}
    for part in parts:
        grouped.setdefault(part.path, []).append(part)
    for file in files:
        file_parts = grouped.get(file.path, [])
        yield file, file_parts, file_state(file, file_parts, part_size)
