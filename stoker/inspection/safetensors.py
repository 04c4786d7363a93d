"""Reads and checks the header of a safetensors file without touching the weights.

Format (https://github.com/huggingface/safetensors#format): eight bytes, the length of the header as
an unsigned little-endian number; the header, a JSON object beginning with `{`; the tensors' bytes
to the end of the file. The header maps each tensor's name to `{"dtype": str, "shape": [int, ...],
"data_offsets": [begin, end]}`, offsets counted from the end of the header, and may map
`__metadata__` to an object of strings.

A scanner for exactly that grammar reads the header, not a JSON parser. It stops at the first error,
detects duplicate keys and cannot recurse. It never builds more than the tensors that the limits
allow, regardless of the content of a header, which may have 100 MB.
"""

import json
import re
import struct
from dataclasses import dataclass
from typing import NoReturn

from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet

MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 100_000
MAX_METADATA = 100_000
MAX_NAME_CHARACTERS = 512
MAX_DIMENSIONS = 64
# The format's own library multiplies in 64 bits. A file that needs the last bit is invalid.
MAX_BITS = 1 << 63

LENGTH_BYTES = 8

# Bits per number, for every dtype of safetensors 0.8. Numbers of four and six bits are packed: a
# tensor of them fills whole bytes.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

_SPACE = r"[ \t\n\r]*+"
_WHITESPACE = re.compile(_SPACE)
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]{0,1024}+)"')
_NUMBER = r"(?:0|[1-9][0-9]{0,19}+)"
_NUMBERS = re.compile(
    rf"\[{_SPACE}({_NUMBER}(?:{_SPACE},{_SPACE}{_NUMBER}){{0,{MAX_DIMENSIONS - 1}}}+)?{_SPACE}\]"
)
# A tensor as the format's own library and Python's json write it, which covers nearly every tensor.
# One match replaces some twenty.
_WRITTEN_TENSOR = re.compile(
    rf'"([^"\\\x00-\x1f]{{0,{MAX_NAME_CHARACTERS}}}+)": ?\{{"dtype": ?"([A-Z0-9_]++)", ?'
    rf'"shape": ?\[((?:{_NUMBER}(?:, ?{_NUMBER}){{0,{MAX_DIMENSIONS - 1}}}+)?)\], ?'
    rf'"data_offsets": ?\[({_NUMBER}), ?({_NUMBER})\]\}}'
)
_DECODER = json.JSONDecoder(strict=True)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a header: dtype, count of numbers, begin and end of its bytes, and shape."""

    dtype: str
    numbers: int
    begin: int
    end: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """Content of a safetensors header, checked against the size of its file."""

    tensors: dict[str, Tensor]
    data_bytes: int

    @property
    def parameters(self) -> int:
        """Returns the number of values in the file's tensors."""
        return sum(tensor.numbers for tensor in self.tensors.values())

    def bytes_by_dtype(self) -> dict[str, int]:
        """Returns the number of bytes of the tensors of each dtype."""
        totals: dict[str, int] = {}
        for tensor in self.tensors.values():
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.end - tensor.begin
        return totals


def looks_like_safetensors(head: bytes) -> bool:
    """True if a file that begins with these bytes can be safetensors."""
    return (
        len(head) > LENGTH_BYTES
        and struct.unpack_from("<Q", head)[0] <= MAX_HEADER_BYTES
        and head[LENGTH_BYTES] == ord("{")
    )


def read_header(files: FileSet, path: str) -> Header:
    """Reads and checks one file's header.

    The checks are at least as strict as those of the format's own library. They cover the header's
    length against the file's, the grammar, duplicate keys, dtypes, shapes (integers, no overflow),
    and each tensor's bytes against its shape and dtype. They also ensure that the tensors fill the
    rest of the file with no overlap, hole or remainder. At most 100,000 tensors, names of at most
    512 characters.

    Raises:
        InspectionError: `BAD_SAFETENSORS`, `TRUNCATED`.
    """
    size = files.sizes[path]
    if size < LENGTH_BYTES:
        raise _bad(path, f"has {size} bytes and so cannot hold a safetensors header")
    (length,) = struct.unpack("<Q", files.head(path, LENGTH_BYTES))
    if length > MAX_HEADER_BYTES:
        raise _bad(path, f"claims a header of {length} bytes, more than {MAX_HEADER_BYTES}")
    if length > size - LENGTH_BYTES:
        raise _bad(path, f"claims a header of {length} bytes but has only {size} bytes in all")
    try:
        text = files.read(path, LENGTH_BYTES, length).decode("utf-8")
    except UnicodeDecodeError:
        raise _bad(path, "has a header that is not UTF-8 text") from None
    tensors = _Scanner(path, text).header()
    data_bytes = size - LENGTH_BYTES - length
    _check_layout(path, tensors, data_bytes)
    return Header(tensors, data_bytes)


class _Scanner:
    """Scanner that reads a header's grammar from left to right."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._position = 0
        # The current tensor, for messages.
        self._tensor_name: str | None = None

    def header(self) -> dict[str, Tensor]:
        """Reads the whole header. Only white space may follow it."""
        tensors: dict[str, Tensor] = {}
        has_metadata = False
        if not self._text.startswith("{"):
            raise _bad(self._path, "has a header that does not begin with '{'")
        more = self._open("the header")
        while more:
            self._skip_space()
            written = _WRITTEN_TENSOR.match(self._text, self._position)
            name = written[1] if written else self._key("a tensor's name")
            if name in tensors or (name == "__metadata__" and has_metadata):
                raise _bad(self._path, f"names {quoted(name)} twice in its header")
            if name == "__metadata__":
                has_metadata = True
                self._metadata()
            elif written:
                tensors[name] = self._written_tensor(written)
            else:
                tensors[name] = self._tensor(name)
            if len(tensors) > MAX_TENSORS:
                raise _bad(self._path, f"holds more than {MAX_TENSORS} tensors")
            more = self._more("the header")
        if self._next():
            raise _bad(self._path, "has extra content after the end of its header's JSON")
        return tensors

    def _metadata(self) -> None:
        keys: set[str] = set()
        more = self._open("__metadata__")
        while more:
            key = self._key("a key of __metadata__")
            if key in keys:
                raise _bad(self._path, f"contains {quoted(key)} twice in __metadata__")
            keys.add(key)
            if len(keys) > MAX_METADATA:
                raise _bad(self._path, f"holds more than {MAX_METADATA} entries in __metadata__")
            self._string("a value of __metadata__")
            more = self._more("__metadata__")

    def _written_tensor(self, found: re.Match[str]) -> Tensor:
        self._position = found.end()
        shape = [int(number) for number in found[3].split(",")] if found[3] else []
        return _checked_tensor(
            self._path, found[1], found[2], shape, [int(found[4]), int(found[5])]
        )

    def _tensor(self, name: str) -> Tensor:
        self._tensor_name = name
        dtype: str | None = None
        shape: list[int] | None = None
        offsets: list[int] | None = None
        more = self._open("the description")
        while more:
            key = self._key("a key")
            if key == "dtype" and dtype is None:
                dtype = self._string("the dtype")
            elif key == "shape" and shape is None:
                shape = self._numbers("the shape")
            elif key == "data_offsets" and offsets is None:
                offsets = self._numbers("the data_offsets")
            else:
                raise _bad(
                    self._path, f"has a repeated or unknown {quoted(key)} in tensor {quoted(name)}"
                )
            more = self._more("the description")
        if dtype is None or shape is None or offsets is None:
            raise _bad(self._path, f"lacks dtype, shape or data_offsets of tensor {quoted(name)}")
        self._tensor_name = None
        return _checked_tensor(self._path, name, dtype, shape, offsets)

    def _open(self, where: str) -> bool:
        """Consumes the `{` of an object. Returns True if it has members."""
        if self._next() != "{":
            self._expected("an object", where)
        self._position += 1
        if self._next() != "}":
            return True
        self._position += 1
        return False

    def _more(self, where: str) -> bool:
        """Consumes the `,` or `}` after a member. Returns True if another follows."""
        mark = self._next()
        if mark not in {",", "}"}:
            self._expected("a ',' or '}'", where)
        self._position += 1
        return mark == ","

    def _key(self, where: str) -> str:
        key = self._string(where)
        if self._next() != ":":
            self._expected("a ':'", where)
        self._position += 1
        return key

    def _string(self, where: str) -> str:
        if self._next() != '"':
            self._expected("a string", where)
        plain = _PLAIN_STRING.match(self._text, self._position)
        if plain:
            self._position = plain.end()
            return plain[1]
        try:
            value, self._position = _DECODER.raw_decode(self._text, self._position)
            # Half a surrogate pair is not text. The format's own library rejects it, too.
            str(value).encode("utf-8")
        except ValueError:
            self._expected("a string", where)
        return str(value)

    def _numbers(self, where: str) -> list[int]:
        match = _NUMBERS.match(self._text, self._position) if self._next() == "[" else None
        if not match:
            self._expected(f"a list of at most {MAX_DIMENSIONS} non-negative whole numbers", where)
        self._position = match.end()
        return [int(number) for number in match[1].split(",")] if match[1] else []

    def _next(self) -> str:
        """Returns the next character that is not white space. Returns an empty text at the end."""
        self._skip_space()
        return self._text[self._position : self._position + 1]

    def _skip_space(self) -> None:
        # Real headers have hardly any white space, so trying the pattern each time is not
        # worthwhile.
        if self._text[self._position : self._position + 1].isspace():
            space = _WHITESPACE.match(self._text, self._position)
            self._position = space.end() if space else self._position

    def _expected(self, what: str, where: str) -> NoReturn:
        if self._tensor_name is not None:
            where += f" of tensor {quoted(self._tensor_name)}"
        raise _bad(self._path, f"does not have {what} where {where} should be in its header")


def _checked_tensor(
    path: str, name: str, dtype: str, shape: list[int], offsets: list[int]
) -> Tensor:
    if len(name) > MAX_NAME_CHARACTERS:
        raise _bad(path, f"names a tensor with over {MAX_NAME_CHARACTERS} characters")
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise _bad(path, f"has tensor {quoted(name)} of the unknown dtype {quoted(dtype)}")
    if len(offsets) != 2:
        raise _bad(
            path, f"has tensor {quoted(name)} with {len(offsets)} data_offsets instead of two"
        )
    # Zeros count as ones here, so that an invalid dimension next to a zero is still detected.
    bound = bits
    for dimension in shape:
        bound *= dimension or 1
        if bound >= MAX_BITS:
            raise _bad(path, f"has tensor {quoted(name)} of an impossibly large shape")
    numbers = 0 if 0 in shape else bound // bits
    begin, end = offsets
    if numbers * bits != (end - begin) * 8:
        raise _bad(
            path,
            f"has tensor {quoted(name)} of {numbers} numbers of {dtype}, which do not fill "
            f"its bytes {begin} to {end}",
        )
    return Tensor(dtype, numbers, begin, end, tuple(shape))


def _check_layout(path: str, tensors: dict[str, Tensor], data_bytes: int) -> None:
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            fault = "overlaps the one before" if tensor.begin < position else "leaves a hole before"
            raise _bad(path, f"has tensor {quoted(name)} at byte {tensor.begin}, which {fault} it")
        position = tensor.end
    if position != data_bytes:
        raise _bad(
            path,
            f"is cut short or padded: its tensors take {position} bytes, "
            f"the file has {data_bytes} for them",
        )


def _bad(path: str, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_SAFETENSORS,
        f"{path} {what}. Save the weights again with the safetensors library and upload that file.",
        path,
    )
