"""Inputs and samples as bytes in memory that processes share.

A payload is a pickled object, followed by the contents of its tensors, arrays and media as they
are. Both sides are processes of one replica, behind the same walls.
"""

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import torch

from stoker.media.media import Media, MediaKind

_HEAD = struct.Struct("<QQ")
"""Number of contents, and bytes of the pickled object."""
_SIZE = struct.Struct("<Q")
_ALIGNMENT = 64


class TooLargeError(Exception):
    """Raised if a payload does not fit into its memory."""


class NotTransferableError(Exception):
    """Raised if an object cannot be passed to another process."""


def encode(value: object, memory: memoryview) -> int:
    """Writes a payload to the start of the memory. Returns its size in bytes.

    Raises `TooLargeError` or `NotTransferableError`.
    """
    contents: list[pickle.PickleBuffer] = []
    pickled = dumped(_ContentPickler, value, contents.append)
    views = [content.raw() for content in contents]
    sizes = b"".join(_SIZE.pack(view.nbytes) for view in views)
    pieces = [memoryview(_HEAD.pack(len(views), len(pickled)) + sizes + pickled), *views]
    places = _places([piece.nbytes for piece in pieces])
    end = places[-1] + pieces[-1].nbytes
    if end > len(memory):
        raise TooLargeError
    for place, piece in zip(places, pieces, strict=True):
        memory[place : place + piece.nbytes] = piece
    return end


def decode(memory: memoryview, *, is_copied: bool) -> Any:
    """Returns the object of a payload.

    Args:
        is_copied: True if the object is used after the memory has another content.
    """
    count, pickled_size = _HEAD.unpack_from(memory)
    start = _HEAD.size + count * _SIZE.size
    sizes = [_SIZE.unpack_from(memory, _HEAD.size + at * _SIZE.size)[0] for at in range(count)]
    _, *places = _places([start + pickled_size, *sizes])
    views = [memory[place : place + size] for place, size in zip(places, sizes, strict=True)]
    contents = [_copy(view) for view in views] if is_copied else views
    return pickle.loads(memory[start : start + pickled_size], buffers=contents)  # noqa: S301


def copied(value: Any) -> Any:
    """Returns the object after a transfer. Raises `NotTransferableError`."""
    return pickle.loads(dumped(_ContentPickler, value, bool))  # noqa: S301


def aligned(size: int) -> int:
    """Returns a size rounded up to the alignment of contents."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def dumped(pickler: Any, value: object, *options: Any) -> bytes:
    """Returns the object as this class pickles it. Raises `NotTransferableError`."""
    output = io.BytesIO()
    try:
        pickler(output, *options).dump(value)
    except Exception as error:
        # Classes raise various errors if they cannot be pickled.
        raise NotTransferableError(f"{type(error).__name__}: {error}") from error
    return output.getvalue()


def _places(sizes: Sequence[int]) -> list[int]:
    places: list[int] = []
    end = 0
    for size in sizes:
        places.append(aligned(end))
        end = places[-1] + size
    return places


def _copy(view: memoryview) -> memoryview:
    """Returns a copy of bytes. Other threads run during the copy."""
    if not len(view):
        return memoryview(bytearray())
    copy: Any = torch.frombuffer(view, dtype=torch.uint8).clone()
    return memoryview(copy.numpy())


class _ContentPickler(pickle.Pickler):
    """Keeps the contents of tensors, arrays and media out of the pickled object."""

    def __init__(self, output: io.BytesIO, collect: Any) -> None:
        super().__init__(output, protocol=5, buffer_callback=collect)

    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, torch.Tensor):
            return _reduced(obj)
        if isinstance(obj, Media):
            content = None if obj.content is None else pickle.PickleBuffer(obj.content)
            return _media, (obj.kind, obj.sampling_rate, content)
        return NotImplemented


def _media(kind: MediaKind, sampling_rate: int | None, content: memoryview | None) -> Media:
    return Media(kind, content=content, sampling_rate=sampling_rate)


def _reduced(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
        raise NotTransferableError(f"a tensor on {tensor.device}, {tensor.layout}")
    flat = _flat(tensor)
    if flat is None:
        tensor = tensor.contiguous()
        flat = tensor.reshape(-1)
    content: Any = flat.view(torch.uint8).numpy()
    shape = tuple(tensor.size()), tensor.stride(), tensor.dtype
    return _tensor, (pickle.PickleBuffer(content), *shape)


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the elements in the order of memory. None if other elements lie between them."""
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * stride for size, stride in pairs)
    if tensor.numel() == 0 or reach != tensor.numel():
        return None
    return tensor.as_strided((tensor.numel(),), (1,))


def _tensor(
    content: memoryview, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    if not len(content):
        return torch.empty_strided(size, stride, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).as_strided(size, stride)
