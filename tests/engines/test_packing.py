"""A packed row holds the tokens of padded rows, and gives them back at their places."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.models.engines import packed_attention
from stoker.models.engines.packed_attention import NotPackableError
from stoker.models.engines.packing import (
    PackedShape,
    TokenPacking,
    bucketed,
    bucketed_for_gpu,
    packed_inputs,
)
from stoker.models.stages.base import bucket

LENGTHS = st.lists(st.integers(1, 300), min_size=2, max_size=40)
SIDES = st.sampled_from(["left", "right"])


def packing(lengths: list[int], shape: PackedShape, side: str = "right") -> TokenPacking:
    known = TokenPacking.of(packed_inputs(lengths, shape, side))
    assert known
    return known


def numbered(lengths: list[int], width: int, side: str) -> torch.Tensor:
    """Returns rows with a number for each token, and zeros as padding."""
    rows = torch.zeros(len(lengths), width, dtype=torch.long)
    first = 1
    for row, length in enumerate(lengths):
        start = 0 if side == "right" else width - length
        rows[row, start : start + length] = torch.arange(first, first + length)
        first += length
    return rows


class TestPacking:
    @given(LENGTHS, SIDES)
    def test_unpacks_what_was_packed(self, lengths: list[int], side: str) -> None:
        width = bucket(max(lengths))
        shape = bucketed(lengths, width)
        if shape is None:
            return
        known, rows = packing(lengths, shape, side), numbered(lengths, width, side)
        total = sum(lengths)
        packed = known.packed(rows)
        assert packed.shape == (1, shape.tokens)
        assert packed[0, :total].tolist() == [*range(1, total + 1)]
        unpacked = known.padded(packed)
        assert torch.equal(unpacked * (rows > 0), rows)
        # Padding holds a copy of a token of its row.
        assert all(
            set(row.tolist()) == set(own[own > 0].tolist())
            for row, own in zip(unpacked, rows, strict=True)
        )

    @given(LENGTHS)
    def test_segments_are_the_samples_and_the_dummies(self, lengths: list[int]) -> None:
        shape = bucketed(lengths, bucket(max(lengths)))
        if shape is None:
            return
        known = packing(lengths, shape)
        sizes = known.segments
        assert sizes[: len(lengths)] == lengths
        assert sum(sizes) == shape.tokens
        assert max(sizes) <= known.longest
        assert known.owners[: lengths[0]].tolist() == [0] * lengths[0]

    def test_values_of_one_row_are_the_same_in_all_rows(self) -> None:
        known = packing([2, 9], PackedShape(2, 16, 32))
        positions = torch.arange(16)[None]
        assert known.packed(positions)[0, :11].tolist() == [0, 1, *range(9)]

    def test_other_tensors_stay(self) -> None:
        known = packing([2, 9], PackedShape(2, 16, 32))
        for value in (torch.zeros(3), torch.zeros(5, 16), torch.zeros(2, 7)):
            assert known.packed(value) is value
            assert known.padded(value) is value

    def test_a_batch_without_its_tensors_is_padded(self) -> None:
        assert TokenPacking.of({"input_ids": torch.zeros(1, 1)}) is None


class TestShapes:
    @given(LENGTHS)
    def test_computes_few_dummies(self, lengths: list[int]) -> None:
        width = bucket(max(lengths))
        shape = bucketed(lengths, width)
        if shape is None:
            assert (sum(lengths) + 16) * 8 / 7 >= len(lengths) * width or width >= sum(lengths)
            return
        assert max(sum(lengths), width) <= shape.tokens < len(lengths) * width
        assert shape.tokens <= max(sum(lengths), width) * 9 / 8 + 16

    def test_shapes_repeat(self) -> None:
        """A CUDA graph can be captured for each shape."""
        shapes = {bucketed([500, 12, total], 512) for total in range(1, 400)}
        assert len(shapes) < 12

    @given(LENGTHS, st.integers(300, 512))
    def test_a_gpu_has_few_shapes(self, lengths: list[int], most: int) -> None:
        width = bucket(max(lengths))
        shape = bucketed_for_gpu(lengths, min(width, most), most)
        if shape is None:
            return
        assert len(lengths) <= shape.rows < 2 * len(lengths)
        assert max(lengths) <= shape.width <= most
        assert sum(lengths) <= shape.tokens < len(lengths) * shape.width
        known = packing(lengths, shape)
        assert max(known.segments) <= known.longest

    def test_shapes_of_a_gpu_repeat(self) -> None:
        lengths = [[10 + 7 * at % (step + 30) for at in range(32 + step)] for step in range(32)]
        shapes = {bucketed_for_gpu(batch, bucket(max(batch)), 512) for batch in lengths}
        assert 1 < len(shapes) < 12

    def test_small_batches_of_a_gpu_are_padded(self) -> None:
        assert bucketed_for_gpu([5, 60], 64, 512) is None
        assert bucketed_for_gpu([5, 512], 512, 512) == PackedShape(2, 512, 640)

    def test_equal_lengths_are_padded(self) -> None:
        assert bucketed([16] * 8, 16) is None
        assert bucketed([16], 16) is None

    def test_a_shape_may_have_more_rows_than_samples(self) -> None:
        known = packing([3, 5], PackedShape(4, 8, 16))
        assert known.places.shape == (4, 8)
        assert known.bounds.tolist() == [0, 3, 8, 8, 8, 16]
        rows = numbered([3, 5, 0, 0], 8, "right")
        assert known.packed(rows)[0, :8].tolist() == [*range(1, 9)]
        assert torch.equal(known.padded(known.packed(rows))[:2] * (rows > 0)[:2], rows[:2])


class TestCudaKernels:
    """The kernels need a GPU. Their shapes and arguments are checked without one."""

    @pytest.mark.parametrize("heads", [4, 2])
    @pytest.mark.parametrize("size", [64, 20])
    @pytest.mark.parametrize(
        ("dtype", "is_causal", "window"),
        [
            (torch.bfloat16, False, None),
            (torch.bfloat16, True, None),
            (torch.float16, False, 9),
            (torch.float32, False, None),
            (torch.float32, True, None),
        ],
    )
    def test_shapes(
        self, dtype: torch.dtype, *, is_causal: bool, window: int | None, size: int, heads: int
    ) -> None:
        known = packing([5, 21, 50], PackedShape(3, 56, 80))
        on_meta = TokenPacking(*(value.to("meta") for value in vars(known).values()))
        query = torch.empty(80, 4, size, dtype=dtype, device="meta")
        key = torch.empty(80, heads, size, dtype=dtype, device="meta")
        attention = packed_attention._Attention(0.1, is_causal, window)
        output = packed_attention._on_cuda(on_meta, [query, key, key], attention)
        assert output.shape == query.shape
        assert output.dtype is dtype

    def test_windows_in_single_precision_are_refused(self) -> None:
        known = packing([5, 21, 50], PackedShape(3, 56, 80))
        inputs = [torch.empty(80, 4, 64, device="meta")] * 3
        with pytest.raises(NotPackableError, match="windows"):
            packed_attention._on_cuda(known, inputs, packed_attention._Attention(0.1, False, 9))
