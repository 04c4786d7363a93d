"""What a replica and its vLLM child say to each other: msgpack over a socket pair, never pickles.

A message is four bytes with its length, little-endian, and so many of msgpack. Both sides import
this, the child from another Python environment: nothing here but the standard library and msgspec.
"""

import socket
import struct
import threading
from typing import Any, Generic, TypeVar

import msgspec

from stoker.models.llm.interface import Output
from stoker.wire.generation_request import Sampling

MAX_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """The first message."""

    folder: str
    device: str
    """`auto`, `cpu` or `cuda`: which one, the environment of the process says."""
    dtype: str
    cache_bytes: int
    """What the key-value cache may take on a CPU."""
    gpu_share: float
    """The part of a GPU's memory that weights, work and cache may take."""
    adapters: str = ""
    """A folder of those that sequences may have; empty: none."""
    max_rank: int = 0
    """Of adapters."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The answer to `Ready`."""

    ends: list[int]
    """Tokens by which the model ends its answer."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Add a sequence; it takes part from the next step on."""

    id: int
    prompt: list[int]
    sampling: Sampling
    grammar: str = ""
    """The form that the answer has to have, in llguidance's own JSON."""
    after: int | None = None
    """The form begins behind this token."""
    plain: list[int] = []
    """Added tokens that are text within the form."""
    adapter: str = ""
    """The folder in `Load.adapters` of what is added to the model for it."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Forget a sequence; an unknown one is no error."""

    id: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded: most tokens of a sequence, and the width of its logits."""

    max_length: int
    vocabulary: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The model cannot be loaded; nothing follows."""

    message: str


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """One step was computed, whether or not it gave anything."""

    outputs: list[Output]
    usage: float
    """The share of the key-value cache that sequences hold, 0 to 1."""


ToChild = Load | Begin | Submit | Abort
FromChild = Ready | Refused | Stepped

Incoming = TypeVar("Incoming")


class Channel(Generic[Incoming]):
    """One end. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        """
        Args:
            incoming: the type of what comes.
        """
        self._socket = end
        self._file = end.makefile("rb")
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._lock = threading.Lock()

    def send(self, message: ToChild | FromChild) -> None:
        """Raises `OSError` where the other end is gone, `ValueError` for what is too large."""
        content = self._encode(message)
        if len(content) > MAX_BYTES:
            raise ValueError(f"a message has {len(content)} bytes")
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self) -> Incoming | None:
        """The next message, waiting for it; None at the end.

        Raises `ValueError` (msgspec's errors are such) for what is none.
        """
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > MAX_BYTES:
            raise ValueError(f"a message of {size} bytes is announced")
        content = self._read(size)
        return None if content is None else self._decode(content)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        try:
            found = self._file.read(size)
        except ConnectionError:
            return None
        return found if len(found) == size else None
