"""Objects are the same after a transfer through shared memory."""

import mmap
from typing import Any

import numpy
import pytest
import torch

from stoker.media.media import Media
from stoker.models.stages.base import Sample
from stoker.replica.preparation.payload import (
    NotTransferableError,
    TooLargeError,
    decode,
    encode,
)
from stoker.replica.preparation.stages_copy import same_samples

DENSE = torch.arange(24, dtype=torch.float32).reshape(1, 2, 3, 4)
TENSORS = {
    "plain": DENSE,
    "channels last": DENSE.contiguous(memory_format=torch.channels_last),
    "transposed": DENSE.transpose(1, 3),
    "with an offset": DENSE[:, 1:],
    "with gaps": DENSE[..., ::2],
    "expanded": torch.ones(1, 1).expand(1, 5),
    "empty": torch.empty(1, 0, 3),
    "scalar": torch.tensor(7),
    "bfloat16": DENSE.bfloat16(),
    "float16": DENSE.half(),
    "bool": DENSE > 5,
    "complex": torch.complex(DENSE, -DENSE),
    "NaN": torch.tensor([[float("nan"), -0.0, float("inf")]]),
}


def _memory(size: int = 1 << 16) -> memoryview:
    return memoryview(mmap.mmap(-1, size))


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_keeps_its_bits_and_its_layout(name: str) -> None:
    tensor, memory = TENSORS[name], _memory()
    encode([Sample({"x": tensor})], memory)
    received = decode(memory, is_copied=True)
    memory[:] = bytes(len(memory))
    is_dense = name not in {"with gaps", "expanded"}
    expected = tensor if is_dense else tensor.contiguous()
    assert same_samples([Sample({"x": expected})], received)


def test_other_values_stay_too() -> None:
    shared = torch.ones(2)
    value: Any = {
        "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        "size": (480, 640),
        "text": "a word",
        "missing": None,
        "one": shared,
        "two": shared,
    }
    memory = _memory()
    encode(value, memory)
    received = decode(memory, is_copied=True)
    memory[:] = bytes(len(memory))
    assert same_samples([Sample({}, value)], [Sample({}, received)])
    assert received["one"] is received["two"]


def test_media_are_read_where_they_are() -> None:
    memory = _memory()
    content = memoryview(b"encoded" * 100)
    media = Media("image", content=content)
    encode(({"image": media, "again": media}, {}), memory)
    item, _ = decode(memory, is_copied=False)
    assert item["image"] is item["again"]
    assert (item["image"].kind, item["image"].sampling_rate) == ("image", None)
    assert item["image"].content.obj is memory.obj
    assert bytes(item["image"].content) == bytes(content)


def test_size_is_bounded() -> None:
    with pytest.raises(TooLargeError):
        encode(torch.zeros(1 << 14), _memory(1 << 12))


@pytest.mark.parametrize("value", [torch.empty(2, device="meta"), lambda: None])
def test_values_of_this_process_only_are_refused(value: Any) -> None:
    with pytest.raises(NotTransferableError):
        encode(value, _memory())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (DENSE, TENSORS["channels last"]),
        (numpy.ones(2), numpy.ones(3)),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"b": 1}),
        (1, 1.0),
    ],
)
def test_comparison_finds_differences(first: Any, second: Any) -> None:
    assert same_samples([Sample({}, {"x": first})], [Sample({}, {"x": first})])
    assert not same_samples([Sample({}, {"x": first})], [Sample({}, {"x": second})])
