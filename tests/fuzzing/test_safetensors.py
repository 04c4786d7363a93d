"""Headers of safetensors files with a damaged structure are read as the format's library reads
them.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from stoker.inspection import InspectionError
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import MAX_DIMENSIONS, MAX_NAME_CHARACTERS, read_header
from tests.fuzzing.support import fuzz, python_memory
from tests.inspection.builders import MemoryFiles

DTYPES = ["bool", "u1", "i2", "f2", "i4", "f4", "f8", "c8"]
NAMES = st.sampled_from(["a", "b.weight", "é", "", "__metadata__", "\u2028", '"\\', "dtype"])
LENGTHS = [0, 1, 7, 8, 9, 100_000_000, 100_000_001, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]
NUMBERS = st.sampled_from(
    [
        "-1",
        "-0",
        "00",
        "01",
        "1.0",
        "1e1",
        "1E400",
        "9" * 19,
        "9" * 20,
        "9" * 21,
        "null",
        "true",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775808",
        '"1"',
        "[1]",
        "{}",
    ]
)
JUNK = st.sampled_from(
    ["null", "0", '""', "[]", "{}", "[[0]]", '{"a":1}', '"F32"', "tru", "", "//"]
)


@dataclass
class Raw:
    """Piece of JSON that is written verbatim."""

    text: str


Pairs = list[tuple[str, Any]]
"""Members of an object, which may contain a key twice."""


def members(data: bytes) -> tuple[Pairs, bytes]:
    """Returns the header of a file as pairs, and the data after it."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length], object_pairs_hook=list), data[8 + length :]


def written(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, Raw):
        return value.text
    space = draw(st.sampled_from(["", "", "", " ", "\n\t", "\r\n "]))
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        inner = [f"{written(draw, key)}{space}:{space}{written(draw, item)}" for key, item in value]
        return "{" + f"{space},{space}".join(inner) + space + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(written(draw, item) for item in value) + space + "]"
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


def damaged(draw: st.DrawFn, tensors: Pairs) -> Pairs:
    """Changes one thing of the header."""
    at = draw(st.integers(0, max(len(tensors) - 1, 0)))
    kind = draw(st.sampled_from(["twice", "name", "field", "order", "offsets", "shape", "meta"]))
    if not tensors or kind == "meta":
        value = draw(JUNK.map(Raw) | st.just([("k", "v"), ("k", "w")]) | st.just([("k", 1)]))
        return [*tensors, ("__metadata__", value)]
    name, tensor = tensors[at]
    if not isinstance(tensor, list) or not tensor or not isinstance(tensor[0], tuple):
        return [*tensors, ("b", Raw("{}"))]
    if kind == "twice":
        return [*tensors, draw(st.sampled_from([tensors[at], (name, Raw("null"))]))]
    if kind == "name":
        long = st.sampled_from(["x" * MAX_NAME_CHARACTERS, "x" * (MAX_NAME_CHARACTERS + 1)])
        half = st.just(Raw('"\\ud800"')) | st.just(Raw('"\\ud83d\\ude00"')) | st.just(Raw('"a\tb"'))
        tensors = [*tensors]
        tensors[at] = (draw(NAMES | long | half), tensor)
        return tensors
    if kind == "order":
        tensor = draw(st.permutations(tensor))
    elif kind == "field":
        change = draw(st.integers(0, len(tensor) - 1))
        gone = [member for place, member in enumerate(tensor) if place != change]
        key, value = tensor[change]
        more = st.sampled_from(
            [(key, value), (key, Raw("null")), ("more", 1), (Raw('"dt\\u0079pe"'), "F32")]
        )
        tensor = [*gone, *draw(st.lists(more, max_size=2))]
    else:
        tensor = [(key, _other(draw, key, value, kind)) for key, value in tensor]
    return [*tensors[:at], (name, tensor), *tensors[at + 1 :]]


def _other(draw: st.DrawFn, key: Any, value: Any, kind: str) -> Any:
    if not (isinstance(value, list) and key == ("shape" if kind == "shape" else "data_offsets")):
        return value
    if draw(st.integers(0, 4)) == 0:
        return draw(JUNK.map(Raw))
    value = [*value]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(value)))
        near = value[at] if at < len(value) and isinstance(value[at], int) else 0
        number = draw(
            st.sampled_from([0, 1, near + 1, max(near - 1, 0), near * 2, 1 << 32])
            | NUMBERS.map(Raw)
        )
        value[at : at + draw(st.integers(0, 1))] = [number]
    if kind == "shape" and draw(st.integers(0, 5)) == 0:
        value += [1] * draw(st.sampled_from([MAX_DIMENSIONS - len(value), MAX_DIMENSIONS]))
    return value


@st.composite
def files(draw: st.DrawFn) -> bytes:
    arrays = draw(
        st.lists(
            st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=4
        )
    )
    made = {f"t{at}": np.zeros(shape, dtype) for at, (dtype, shape) in enumerate(arrays)}
    tensors, data = members(save(made, {"format": "pt"} if made and draw(st.booleans()) else None))
    if draw(st.booleans()):
        tensors = draw(st.permutations(tensors))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        tensors = damaged(draw, tensors)
    text = written(draw, tensors) if tensors else "{}"
    header = text.encode() + b" " * draw(st.integers(0, 9))
    if draw(st.integers(0, 7)) == 0:
        around = [
            (b"\xef\xbb\xbf", b""),
            (b" ", b""),
            (b"", b"\0"),
            (b"", b"{}"),
            (b"", b","),
            (b"\xff", b""),
        ]
        before, after = draw(st.sampled_from(around))
        header = before + header + after
    if draw(st.integers(0, 7)) == 0:
        header = header[: draw(st.integers(0, len(header)))]
    length = len(header)
    if draw(st.integers(0, 7)) == 0:
        length = draw(
            st.sampled_from([*LENGTHS, length + 1, max(length - 1, 0), length + len(data)])
        )
    data = data[: len(data) - draw(st.sampled_from([0] * 9 + [1]))] + bytes(
        draw(st.sampled_from([0] * 9 + [1, 8]))
    )
    file = struct.pack("<Q", length) + header + data
    return file[: draw(st.integers(0, len(file)))] if draw(st.integers(0, 19)) == 0 else file


def theirs(data: bytes) -> dict[str, tuple[str, int, int]] | None:
    try:
        tensors = deserialize(data)
    except SafetensorError:
        return None
    return {
        name: (tensor["dtype"], int(np.prod(tensor["shape"], dtype=np.int64)), len(tensor["data"]))
        for name, tensor in tensors
    }


def stricter(data: bytes) -> bool:
    """Returns whether our reader deliberately rejects a file that the library accepts, for example
    because of duplicate keys.
    """
    header, _ = members(data)

    def twice(pairs: Sequence[tuple[str, Any]]) -> bool:
        return len({key for key, _ in pairs}) < len(pairs)

    def objects(value: Any) -> list[Pairs]:
        is_object = isinstance(value, list) and value and isinstance(value[0], tuple)
        return [value] if is_object else []

    tensors = [(name, member) for name, member in header if name != "__metadata__"]
    return (
        # The format requires it.
        data[8:9] != b"{"
        or twice(header)
        or any(twice(pairs) for _, member in header for pairs in objects(member))
        or any({*dict(member)} != {"dtype", "shape", "data_offsets"} for _, member in tensors)
        or any(len(name) > MAX_NAME_CHARACTERS for name, _ in tensors)
        or any(len(dict(member)["shape"]) > MAX_DIMENSIONS for _, member in tensors)
        # For metadata only: the library accepts null as no metadata.
        or any(name == "__metadata__" and not objects(member) for name, member in header)
    )


@fuzz(files(), examples=300)
def test_read_as_the_library_does(data: bytes) -> bool:
    files_ = MemoryFiles({"x": data})
    reference = theirs(data)
    try:
        # Memory is bounded by the actual size, for any claimed counts and lengths.
        with python_memory(64 * len(data) + 65_536):
            header = read_header(FileSet(files_), "x")
    except InspectionError:
        assert reference is None or stricter(data)
        return False
    finally:
        assert files_.bytes_read <= len(data)
    ours = {
        name: (tensor.dtype, tensor.numbers, tensor.end - tensor.begin)
        for name, tensor in header.tensors.items()
    }
    assert ours == reference
    return True
