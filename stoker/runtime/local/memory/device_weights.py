"""Sizes of a model's weights on a GPU, from the headers of its files."""

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.models.engines.record import AUTO

_LENGTH_BYTES, _MOST_HEADER_BYTES = 8, 100_000_000
_FLOATS = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}
"""Bytes of one stored number, for the types that are loaded in another type."""
_SINGLE, _HALF = 4, 2
_WANTED = {"float32": _SINGLE, "bfloat16": _HALF, "float16": _HALF}


@dataclass(frozen=True)
class WeightSizes:
    """Weights of a model by their stored types."""

    numbers: Mapping[str, int]
    """Maps each floating type of `_FLOATS` to its count of numbers."""
    other_bytes: int
    """Bytes of all other types. They are loaded as they are stored."""

    def on_device(self, dtype: str) -> int:
        """Returns the bytes on a GPU that computes in a deployment's `dtype`.

        With `auto`, torch computes in the type of most stored numbers (see `engines.precision`).
        """
        return sum(self.numbers.values()) * self._width(dtype) + self.other_bytes

    def in_half(self, dtype: str) -> int:
        """Returns the bytes in half precision. 0 if `dtype` is half precision already."""
        return self.on_device("bfloat16") if self._width(dtype) > _HALF else 0

    @property
    def in_four_bits(self) -> int:
        """Bytes with four bits a number."""
        return sum(self.numbers.values()) // 2 + self.other_bytes

    def _width(self, dtype: str) -> int:
        if dtype != AUTO:
            return _WANTED.get(dtype, _SINGLE)
        most = max(self.numbers, key=lambda name: self.numbers[name])
        # Doubles are loaded in single precision.
        return min(_FLOATS[most], _SINGLE)


def read_weights(folder: Path) -> WeightSizes | None:
    """Reads the headers of a model's safetensors files. None if it has other weights, or none.

    Reads files, so it is called in a thread.
    """
    numbers, other_bytes = Counter[str](), 0
    try:
        for path in folder.rglob("*.safetensors"):
            for dtype, stored in _tensors(path):
                if dtype in _FLOATS:
                    numbers[dtype] += stored // _FLOATS[dtype]
                else:
                    other_bytes += stored
    except (OSError, ValueError, LookupError, TypeError, struct.error):
        # The load of the model reports the error.
        return None
    return WeightSizes(dict(numbers), other_bytes) if numbers else None


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Yields the type and the bytes of each tensor in a file. Inspection has checked its header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
        if length > _MOST_HEADER_BYTES:
            raise ValueError("the header is too long")
        header: dict[str, dict[str, Any]] = json.loads(file.read(length))
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            yield str(tensor["dtype"]), int(end) - int(begin)
