"""What the server and the process that inspects say to each other: frames of JSON."""

import struct

import msgspec

from stoker.inspection.inspector import Inspection

LENGTH = struct.Struct("!I")
"""Before each frame: its bytes."""


class Ask(msgspec.Struct, frozen=True):
    """Inspect these files."""

    root: str
    """The folder of the blobs; empty: what is `wanted` has to be asked for."""
    files: dict[str, tuple[str, int]]
    """path → (blob key, size in bytes)"""
    pipeline: str | None


class Limits(msgspec.Struct, frozen=True):
    """The first frame."""

    memory_bytes: int


class Wanted(msgspec.Struct, frozen=True):
    path: str
    offset: int
    length: int


class Found(msgspec.Struct, frozen=True):
    """One of the first four is there."""

    inspection: Inspection | None = None
    code: str | None = None
    """The files were refused: `FailureCode`, with what follows."""
    wanted: Wanted | None = None
    """Nothing was found yet: these bytes are to be sent, as a frame."""
    trouble: str | None = None
    """The reader failed; in words for the log."""
    message: str = ""
    path: str | None = None
    is_out_of_memory: bool = False
    peak_bytes: int = 0
    """What the process has held of memory, at most."""


def frame(message: msgspec.Struct) -> bytes:
    return framed(msgspec.json.encode(message))


def framed(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content
