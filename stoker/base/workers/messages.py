"""Frames between the server and a worker process: a length, then msgpack data."""

import struct

import msgspec

LENGTH = struct.Struct("!I")
"""Header of each frame: its length in bytes."""


class WorkerLimits(msgspec.Struct, frozen=True):
    """Limits of a worker process. The first frame that it reads."""

    memory_bytes: int
    """Maximum address space of the process, in bytes."""
    cpu_s: float | None = None
    """CPU time limit of each question, in seconds. The kernel ends a worker that exceeds it."""


class Reply(msgspec.Struct, frozen=True):
    """Frame that a worker sends. Exactly one of the first four fields is set."""

    result: bytes | None = None
    request: bytes | None = None
    """Request of the worker for more data. The next frame that it reads is the answer."""
    trouble: str | None = None
    """Exception of the worker's own code, for the log."""
    is_out_of_memory: bool = False
    peak_bytes: int = 0
    """Maximum resident memory of the process so far, in bytes."""


def frame(message: msgspec.Struct) -> bytes:
    return framed(msgspec.msgpack.encode(message))


def framed(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content
