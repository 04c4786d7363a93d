"""Messages between a replica and its vLLM child: msgpack over a socket pair, never pickles.

A message is its length in four bytes, little-endian, followed by that many bytes of msgpack. Both
sides import this module, the child from another Python environment. It may import only the standard
library and msgspec.
"""

import socket
import struct
import threading
from typing import Any, Generic, TypeVar

import msgspec

from stoker.models.llm.interface import Output
from stoker.wire.generation_request import Sampling
from stoker.wire.sleep import Moved, Sleep, Wake

MAX_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """First message to the child: load a model."""

    folder: str
    device: str
    """`auto`, `cpu` or `cuda`. The environment of the process selects the GPU."""
    dtype: str
    cache_bytes: int
    """Maximum bytes of the key-value cache on a CPU."""
    gpu_share: float
    """Share of a GPU's memory for weights, computation and cache."""
    adapters: str = ""
    """Folder of the adapters that sequences may use. Empty means none."""
    max_rank: int = 0
    """Maximum rank of adapters."""
    devices: int = 1
    """Number of GPUs that the model is spread over."""
    quantization: str = ""
    """Format to which vLLM rounds the weights. Empty means the format of the files."""
    kv_cache_dtype: str = "auto"
    """Dtype of keys and values."""
    sleeps: bool = False
    """True if the model must be able to sleep. See `Sleep`."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The replica's reply to `Ready`."""

    ends: list[int]
    """Tokens by which the model ends its answer."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """Adds a sequence. It takes part from the next step on."""

    id: int
    prompt: list[int]
    sampling: Sampling
    grammar: str = ""
    """Required form of the answer, in llguidance's own JSON."""
    after: int | None = None
    """Token after which the form begins."""
    plain: list[int] = []
    """Added tokens that count as text within the form."""
    adapter: str = ""
    """Folder of its adapter in `LoadModel.adapters`."""
    priority: int = 0
    """Sequences with a lower number are scheduled first."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Removes a sequence. An unknown sequence is no error."""

    id: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded. States the maximum tokens of a sequence and the width of its logits."""

    max_length: int
    vocabulary: int
    sleep_bytes: int | None = None
    """Bytes of main memory that the model needs while it sleeps. None if it cannot sleep."""


class LoadRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The model cannot be loaded. No message follows."""

    message: str


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """Result of a step, which may be empty."""

    outputs: list[Output]
    usage: float
    """Share of the key-value cache that sequences hold, 0 to 1."""


ToChild = LoadModel | Begin | Submit | Abort | Sleep | Wake
FromChild = Ready | LoadRefused | Stepped | Moved

Incoming = TypeVar("Incoming")


class ChildChannel(Generic[Incoming]):
    """Endpoint of the connection. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        """
        Args:
            incoming: type of the received messages.
        """
        self._socket = end
        self._file = end.makefile("rb")
        self._decode = msgspec.msgpack.Decoder(incoming).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._lock = threading.Lock()

    def send(self, message: ToChild | FromChild) -> None:
        """Sends a message. Raises `OSError` if the other end is closed, and `ValueError` if the
        message is too large.
        """
        content = self._encode(message)
        if len(content) > MAX_BYTES:
            raise ValueError(f"a message of {len(content)} bytes is too large")
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self) -> Incoming | None:
        """Waits for the next message and returns it. None at the end.

        Raises `ValueError` for an invalid message (msgspec's errors are subclasses).
        """
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > MAX_BYTES:
            raise ValueError(f"an announced message of {size} bytes is too large")
        content = self._read(size)
        return None if content is None else self._decode(content)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        try:
            received = self._file.read(size)
        except ConnectionError:
            return None
        return received if len(received) == size else None
