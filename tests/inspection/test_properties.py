"""Properties that hold for every file, not only for hand-picked ones."""

import contextlib
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import deserialize, safe_open
from safetensors.numpy import save

from stoker.inspection import InspectionError, inspect, validate_path
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import DTYPE_BITS, Header, read_header

from .builders import (
    PIPELINES,
    MemoryFiles,
    config,
    dumps,
    gguf,
    model,
    raw_safetensors,
    sentencepiece,
    sharded,
)

DTYPES = ["bool", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "f8", "i8", "u8", "c8"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=512).filter(
    lambda name: name != "__metadata__"
)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
    )
)
FILES = {
    **sharded({"model-00001-of-00001.safetensors": {"a": (2, 3), "b": (4,)}}, total_size=40),
    **model(model_safetensors=None, config_json=config(x={"y": [1, None, "z"]})),
    "README.md": b"---\npipeline_tag: token-classification\n---\nSome text.\n",
    "modules.json": dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}]),
    "spiece.model": sentencepiece(5),
    "vocab.txt": b"[PAD]\nthe\n.\n",
    "x.gguf": gguf(),
}
SPLICES = [
    *(bytes([n]) for n in (0, 1, 0x80, 0xFF)),
    *(mark.encode() for mark in '{}[]",:\\'),
    b"-1",
    b"1.0",
    b"1e9",
    b"18446744073709551615",
    b"9223372036854775808",
    b"true",
    b"null",
    b"NaN",
    b'"dtype"',
    b'"auto_map":{"a":"b"},',
    b'"__metadata__":{},',
    b"F64",
    b"[" * 5000,
    pickle.dumps([1]),
    b"PK\x03\x04",
]


def read(data: bytes) -> Header:
    return read_header(FileSet(MemoryFiles({"x": data})), "x")


def refused_or_accepted(files: dict[str, bytes]) -> None:
    with contextlib.suppress(InspectionError):
        inspect(MemoryFiles(files), None, PIPELINES)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Draws a file with a few bytes replaced, inserted, removed or repeated."""
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + 40)))
        middle = draw(st.sampled_from(SPLICES) | st.binary(max_size=9) | st.just(data[begin:end]))
        data = data[:begin] + middle + data[draw(st.sampled_from([begin, end])) :]
    return data


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Draws a safetensors file, right or nearly so, in any spelling that JSON has."""
    tensors: dict[str, Any] = {}
    position = 0
    for name in draw(st.lists(NAMES, unique=True, max_size=4)):
        dtype = draw(st.sampled_from(sorted(DTYPE_BITS)))
        shape = draw(st.lists(st.integers(0, 9), max_size=3))
        end = position + int(np.prod(shape, dtype=np.int64)) * DTYPE_BITS[dtype] // 8
        tensors[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    if draw(st.booleans()):
        tensors["__metadata__"] = draw(st.dictionaries(NAMES, NAMES, max_size=2))
    items = draw(st.permutations(list(tensors.items())))
    text = json.dumps(
        dict(items),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 1, "\t"])),
        separators=draw(st.sampled_from([None, (",", ":"), (" ,", " : "), (",\r\n", ":\t")])),
    )
    header = text.encode() + b" " * draw(st.integers(0, 8))
    if draw(st.integers(0, 3)) == 0:
        header = draw(mutated(header))
    extra = draw(st.sampled_from([0, 0, 0, 0, -1, 1]))
    return raw_safetensors(header, bytes(max(position + extra, 0)))


@settings(deadline=None)
@given(
    st.dictionaries(NAMES, ARRAYS, max_size=6),
    st.none() | st.dictionaries(NAMES, NAMES, max_size=3),
)
def test_every_file_that_the_library_writes_is_accepted(
    tensors: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None
) -> None:
    # For metadata without a tensor, the library writes a header that it cannot read itself.
    assume(tensors or metadata is None)
    header = read(save(tensors, metadata=metadata))
    assert header.parameters == sum(array.size for array in tensors.values())
    assert header.data_bytes == sum(array.nbytes for array in tensors.values())
    assert header.tensors.keys() == tensors.keys()


@settings(max_examples=400, deadline=None)
@given(headers())
def test_every_header_that_is_accepted_is_accepted_by_the_library(data: bytes) -> None:
    try:
        header = read(data)
    except InspectionError:
        return
    theirs = dict(deserialize(data))
    assert header.tensors.keys() == theirs.keys()
    for name, tensor in header.tensors.items():
        assert tensor.dtype == theirs[name]["dtype"]
        assert tensor.numbers == np.prod(theirs[name]["shape"], dtype=np.int64)
        assert tensor.end - tensor.begin == len(theirs[name]["data"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(data)
        with safe_open(path, "np") as opened:
            assert set(opened.keys()) == header.tensors.keys()


@settings(deadline=None)
@given(st.data())
def test_mutated_headers_are_accepted_only_if_the_library_accepts_them(data: st.DataObject) -> None:
    original = raw_safetensors(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "b\u00e9": {"dtype": "U8", "shape": [], "data_offsets": [24, 25]},
        },
        bytes(25),
    )
    changed = data.draw(mutated(original))
    try:
        read(changed)
    except InspectionError:
        return
    deserialize(changed)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted([*FILES, "model.safetensors", "x.bin"])))
def test_random_bytes_raise_nothing_but_refusals(data: bytes, path: str) -> None:
    refused_or_accepted({**FILES, path: data})


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(sorted(FILES)))
def test_mutated_files_raise_nothing_but_refusals(data: st.DataObject, path: str) -> None:
    refused_or_accepted({**FILES, path: data.draw(mutated(FILES[path]))})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["weight_map", "metadata", "total_size", "architectures", "model_type"])
            | st.sampled_from(["auto_map", "model", "vocab", "type", "path", "attn_implementation"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutated_gguf_raises_nothing_but_refusals(data: st.DataObject) -> None:
    changed = data.draw(mutated(gguf()))
    files = MemoryFiles({"x.gguf": changed})
    try:
        inspection = inspect(files, None, PIPELINES)
    except InspectionError:
        return
    assert 0 < inspection.weight_bytes <= len(changed)


@settings(deadline=None)
@given(
    JSON,
    st.sampled_from(sorted([name for name in FILES if name.endswith(".json")])),
)
def test_any_json_raises_nothing_but_refusals(document: Any, path: str) -> None:
    refused_or_accepted({**FILES, path: dumps(document)})


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_path_raises_nothing_but_refusals(path: str) -> None:
    with contextlib.suppress(InspectionError):
        validate_path(path)
        assert path.isascii()
        assert ".." not in path


def test_the_files_that_are_mutated_are_right_as_they_are() -> None:
    assert inspect(MemoryFiles(FILES), None, PIPELINES).parameters == 10
