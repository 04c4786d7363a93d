"""Frames between the server and a worker process: a length, then msgpack."""

import struct

import msgspec

LENGTH = struct.Struct("!I")
"""Precedes each frame: its length in bytes."""


class Limits(msgspec.Struct, frozen=True):
    """The first frame that a worker reads."""

    memory_bytes: int
    """Address space of the process."""
    cpu_s: float | None = None
    """CPU time of each question. The kernel ends a worker that uses more."""


class Reply(msgspec.Struct, frozen=True):
    """A worker's frame. Exactly one of the first four fields is set."""

    result: bytes | None = None
    request: bytes | None = None
    """The worker needs more data: the next frame that it reads is the answer to this."""
    trouble: str | None = None
    """An exception of the worker's own, for the log."""
    is_out_of_memory: bool = False
    peak_bytes: int = 0
    """Largest resident size of the process so far."""


def frame(message: msgspec.Struct) -> bytes:
    return framed(msgspec.msgpack.encode(message))


def framed(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content
