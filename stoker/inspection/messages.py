"""What the server and the process that inspects say to each other: frames of JSON."""

import struct

import msgspec

from stoker.inspection.inspector import Inspection

LENGTH = struct.Struct("!I")
"""Before each frame: its bytes."""


class Ask(msgspec.Struct, frozen=True):
    """Inspect these files."""

    root: str
    """The folder of the blobs."""
    files: dict[str, tuple[str, int]]
    """path → (blob key, size in bytes)"""
    pipeline: str | None


class Limits(msgspec.Struct, frozen=True):
    """The first frame."""

    memory_bytes: int


class Found(msgspec.Struct, frozen=True):
    """One of the first three is there."""

    inspection: Inspection | None = None
    code: str | None = None
    """The files were refused: `FailureCode`, with what follows."""
    trouble: str | None = None
    """The reader failed; in words for the log."""
    message: str = ""
    path: str | None = None
    is_out_of_memory: bool = False
    peak_bytes: int = 0
    """What the process has held of memory, at most."""


def frame(message: msgspec.Struct) -> bytes:
    content = msgspec.json.encode(message)
    return LENGTH.pack(len(content)) + content
