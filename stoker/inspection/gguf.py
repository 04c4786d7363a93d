"""Reads and checks the header of a GGUF file without touching the weights.

Format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), all little-endian: the magic
`GGUF`, a version (u32), the counts of tensors and of metadata entries (u64 each); the entries, each
a key, a type (u32) and a value; the tensors, each a name, its dimensions with the fastest-moving
first, a type (u32) and an offset (u64) into the data, which begins at the next multiple of the
alignment. A string is its length (u64) and UTF-8 bytes; an array the type of its items, their count
(u64) and the items.

Libraries that load GGUF trust all of these numbers. A file that passes these checks is safe for
them.
"""

import math
import struct
from dataclasses import dataclass
from typing import TypeAlias

from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 100_000
MAX_METADATA = 10_000
# The largest public vocabularies take about 25 MB and 1,300,000 items with their merges and scores.
MAX_HEADER_BYTES = 100_000_000
MAX_ITEMS = 3_000_000
MAX_STRING_BYTES = 1 << 20
MAX_KEY_BYTES = 256
MAX_NAME_BYTES = 128
MAX_DIMENSIONS = 4
MAX_NUMBERS = 1 << 48
MAX_ALIGNMENT = 1 << 16
# Arrays of numbers up to this length are kept, such as counts per layer and sections of positions.
_KEPT_ITEMS = 4096

_HEADER = struct.Struct("<4sIQQ")
_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")
_CHUNK_BYTES = 1 << 20
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY, _U32 = 8, 9, 4
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip

# Maps a type to its name, the numbers per block and the bytes per block. See ggml_type in
# https://github.com/ggml-org/llama.cpp/blob/master/ggml/include/ggml.h. Types that weights are
# never stored in are left out.
BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}

Value: TypeAlias = "int | float | bool | str | list[int] | list[float] | list[bool] | GgufArray"


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Array that is not kept, with its number of items."""

    count: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its dimensions (the fastest-moving first), its type, and its bytes in the
    data.
    """

    shape: tuple[int, ...]
    kind: str
    begin: int
    end: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """Content of a GGUF header, checked against the size of its file."""

    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]

    @property
    def parameters(self) -> int:
        return sum(tensor.numbers for tensor in self.tensors.values())

    def bytes_by_kind(self) -> dict[str, int]:
        """Returns the number of bytes of the tensors of each type."""
        totals: dict[str, int] = {}
        for tensor in self.tensors.values():
            totals[tensor.kind] = totals.get(tensor.kind, 0) + tensor.end - tensor.begin
        return totals


def check_gguf(files: FileSet, path: str) -> None:
    """Rejects a file with an unknown GGUF version or impossible counts in its header.

    Raises:
        InspectionError: `BAD_GGUF`.
    """
    _counts(path, files.head(path, _HEADER.size))


def read_gguf(files: FileSet, path: str) -> GgufHeader:
    """Reads and checks one file's header.

    The checks cover every length and count against the file and the limits above, UTF-8, duplicate
    keys and names, types, arrays in arrays (no loader reads them), dimensions, and each tensor's
    blocks. They also ensure that the tensors follow one another, aligned, to the end of the file.

    Raises:
        InspectionError: `BAD_GGUF`, `UNSUPPORTED_FORMAT` for tensors of other types, `TRUNCATED`.
    """
    tensors, entries = _counts(path, files.head(path, _HEADER.size))
    reader = _GgufReader(files, path)
    metadata = reader.metadata(entries)
    table = reader.tensors(tensors)
    alignment = _alignment(path, reader.alignment)
    start = -(-reader.position // alignment) * alignment
    _check_layout(path, table, files.sizes[path] - start, alignment)
    return GgufHeader(metadata, table)


class _GgufReader:
    """Reads the content after the counts from left to right."""

    def __init__(self, files: FileSet, path: str) -> None:
        self._files = files
        self._path = path
        self._size = files.sizes[path]
        self._data = b""
        self._start = _HEADER.size
        self._offset = 0
        self._items = 0
        self.alignment: tuple[int, Value] | None = None
        """Type and value of `general.alignment`."""

    @property
    def position(self) -> int:
        return self._start + self._offset

    def metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._string("a metadata key", MAX_KEY_BYTES)
            if key in metadata:
                raise bad_gguf(self._path, f"contains the metadata {quoted(key)} twice")
            kind = self._count(_UINT32, "a metadata type")
            metadata[key] = self._value(kind, key)
            if key == "general.alignment":
                self.alignment = (kind, metadata[key])
        return metadata

    def tensors(self, count: int) -> dict[str, GgufTensor]:
        tensors: dict[str, GgufTensor] = {}
        for _ in range(count):
            name = self._string("a tensor's name", MAX_NAME_BYTES)
            if name in tensors:
                raise bad_gguf(self._path, f"contains two tensors named {quoted(name)}")
            dimensions = self._count(_UINT32, "a count of dimensions")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise bad_gguf(
                    self._path, f"has tensor {quoted(name)} with {dimensions} dimensions"
                )
            shape = tuple(self._count(_UINT64, "a dimension") for _ in range(dimensions))
            kind = self._count(_UINT32, "a tensor's type")
            offset = self._count(_UINT64, "a tensor's offset")
            tensors[name] = _checked_tensor(self._path, name, shape, kind, offset)
        return tensors

    def _value(self, kind: int, key: str) -> Value:
        if kind == _STRING:
            return self._string(f"the value of {quoted(key)}", MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            raise bad_gguf(self._path, f"has {quoted(key)} with a value of the unknown type {kind}")
        number = struct.Struct(f"<{_NUMBERS[kind]}")
        return number.unpack(self._take(number.size, f"the value of {quoted(key)}"))[0]

    def _array(self, key: str) -> Value:
        kind = self._count(_UINT32, "an array's type")
        count = self._count(_UINT64, "an array's length")
        if kind == _ARRAY:
            raise bad_gguf(self._path, f"has nested arrays in {quoted(key)}")
        if kind != _STRING and kind not in _NUMBERS:
            raise bad_gguf(self._path, f"has items of the unknown type {kind} in {quoted(key)}")
        self._items += count
        if self._items > MAX_ITEMS:
            raise bad_gguf(
                self._path, f"declares over {MAX_ITEMS} items in its arrays, up to {quoted(key)}"
            )
        if kind == _STRING:
            for _ in range(count):
                self._string(f"an item of {quoted(key)}", MAX_STRING_BYTES)
            return GgufArray(count)
        layout = struct.Struct(f"<{count}{_NUMBERS[kind]}")
        data = self._take(layout.size, f"the array {quoted(key)}")
        return list(layout.unpack(data)) if count <= _KEPT_ITEMS else GgufArray(count)

    def _string(self, what: str, limit: int) -> str:
        length = self._count(_UINT64, f"the length of {what}")
        if length > limit:
            raise bad_gguf(self._path, f"declares {length} bytes for {what}, more than {limit}")
        try:
            return self._take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise bad_gguf(self._path, f"has {what} that is not UTF-8 text") from None

    def _count(self, form: struct.Struct, what: str) -> int:
        (value,) = form.unpack(self._take(form.size, what))
        return value

    def _take(self, length: int, what: str) -> bytes:
        end = self._offset + length
        if end > len(self._data):
            rest = self._size - self.position
            if length > rest:
                raise bad_gguf(
                    self._path, f"ends within {what}: {length} bytes are needed, {rest} remain"
                )
            if self.position + length > MAX_HEADER_BYTES:
                raise bad_gguf(self._path, f"has a header of over {MAX_HEADER_BYTES} bytes")
            self._start, self._offset, end = self.position, 0, length
            self._data = self._files.read(
                self._path, self._start, min(max(length, _CHUNK_BYTES), rest)
            )
        piece = self._data[self._offset : end]
        self._offset = end
        return piece


def _counts(path: str, head: bytes) -> tuple[int, int]:
    """Returns the counts of tensors and of metadata entries."""
    if len(head) < _HEADER.size:
        raise bad_gguf(path, "is too short for a GGUF header")
    magic, version, tensors, metadata = _HEADER.unpack(head)
    if magic != MAGIC:
        raise bad_gguf(path, "does not begin with the magic number of GGUF")
    if version not in VERSIONS:
        raise bad_gguf(path, f"is of GGUF version {version}, not 2 or 3 in little-endian order")
    if not 1 <= tensors <= MAX_TENSORS or metadata > MAX_METADATA:
        raise bad_gguf(
            path, f"declares {tensors} tensors and {metadata} metadata entries, outside the limits"
        )
    return tensors, metadata


def _alignment(path: str, given: tuple[int, Value] | None) -> int:
    if given is None:
        return _DEFAULT_ALIGNMENT
    kind, value = given
    if kind != _U32 or not isinstance(value, int) or value.bit_count() != 1:
        raise bad_gguf(path, "has a general.alignment that is not a power of two")
    if value > MAX_ALIGNMENT:
        raise bad_gguf(path, f"has a general.alignment of {value}, more than {MAX_ALIGNMENT}")
    return value


def _checked_tensor(
    path: str, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GgufTensor:
    if kind not in BLOCKS:
        raise InspectionError(
            FailureCode.UNSUPPORTED_FORMAT,
            f"{path} has tensor {quoted(name)} of the type {kind}, which is not supported. "
            "Quantize the model again as one of: "
            f"{', '.join(item for item, *_ in BLOCKS.values())}.",
            path,
        )
    stored, numbers, size = BLOCKS[kind]
    if 0 in shape or math.prod(shape) > MAX_NUMBERS:
        raise bad_gguf(path, f"has tensor {quoted(name)} of an impossible shape")
    if shape[0] % numbers:
        raise bad_gguf(
            path, f"has tensor {quoted(name)} whose rows are not whole blocks of {stored}"
        )
    return GgufTensor(shape, stored, offset, offset + math.prod(shape) // numbers * size)


def _check_layout(
    path: str, tensors: dict[str, GgufTensor], data_bytes: int, alignment: int
) -> None:
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        expected = -(-end // alignment) * alignment
        if tensor.begin != expected:
            fault = (
                "overlaps the previous tensor"
                if tensor.begin < end
                else "is not where the previous tensor ends"
            )
            raise bad_gguf(path, f"has tensor {quoted(name)} at byte {tensor.begin}, which {fault}")
        end = tensor.end
    if not end <= data_bytes < end + alignment:
        raise bad_gguf(
            path,
            f"is cut short or padded: its tensors take {end} bytes, "
            f"the file has {max(data_bytes, 0)} for them",
        )


def bad_gguf(path: str, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_GGUF, f"{path} {what}. Convert the model to GGUF again.", path
    )
