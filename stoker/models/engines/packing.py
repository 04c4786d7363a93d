"""Packs the tokens of padded rows into one row without padding, and unpacks them.

A packed row holds the samples one after another. `bounds` has the start of each sample. If a
layer's attention stays within the bounds, it computes the same for each sample as if that were
alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch

TOKENS, PLACES, BOUNDS = NAMES = ("packed_tokens", "packed_places", "packed_bounds")
"""Names of a packing's tensors in a batch."""

_LEAST_STEP = 16
_STEPS, _GPU_STEPS = 8, 4
"""Number of bucket sizes between a power of two and the next one: on a CPU and on a GPU."""
_LEAST_PADDED = 1024
"""Minimum number of padded tokens for packing on a GPU. With fewer, a pass takes as long as with
one.
"""


class PackedShape(NamedTuple):
    """Shapes of a packed batch. Batches of the same shape could replay the same CUDA graph."""

    rows: int
    """Number of rows, with dummy rows that hold no sample."""
    width: int
    """Padded length of a row."""
    tokens: int
    """Number of tokens of the packed row, with the dummy tokens at its end."""


def bucketed(lengths: Sequence[int], width: int, steps: int = _STEPS) -> PackedShape | None:
    """Returns the shape of a batch, with the number of tokens rounded up.

    The dummy tokens are at most an eighth of the tokens, or 16. None if packing would save nothing.

    Args:
        lengths: number of tokens of each sample.
        width: padded length of a row.
        steps: number of bucket sizes between a power of two and the next one.
    """
    # The packed row is longer than a padded row, so their tensors differ in shape.
    total = max(sum(lengths), width + 1)
    step = max(_LEAST_STEP, (1 << (total - 1).bit_length() - 1) // steps)
    tokens = -(-total // step) * step
    return PackedShape(len(lengths), width, tokens) if tokens < len(lengths) * width else None


def bucketed_for_gpu(lengths: Sequence[int], width: int, most: int) -> PackedShape | None:
    """Returns the shape of a batch on a GPU. There are few shapes, so that each can have a CUDA
    graph.

    Rows are rounded up to a power of two, their width to a power of two or three quarters of it,
    and tokens to four steps between powers of two.

    Args:
        most: maximum width that the model accepts.
    """
    power = 1 << (width - 1).bit_length()
    rounded = max(width, min(most, power * 3 // 4 if width <= power * 3 // 4 else power))
    shape = bucketed(lengths, rounded, _GPU_STEPS)
    if shape is None or len(lengths) * width < max(_LEAST_PADDED, shape.tokens):
        return None
    return shape._replace(rows=1 << (len(lengths) - 1).bit_length())


def packed_inputs(lengths: Sequence[int], shape: PackedShape, side: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a `TokenPacking` for the samples, on the CPU.

    Rows beyond the samples, and tokens beyond theirs, are dummies. The dummy tokens are copies of
    the first token, in a segment after the last sample.

    Args:
        side: the side on which rows are padded.
    """
    counts = torch.tensor([*lengths, *[0] * (shape.rows - len(lengths))])
    starts = (shape.width - counts if side == "left" else torch.zeros_like(counts))[:, None]
    ends = counts.cumsum(0)
    positions = torch.arange(shape.width) - starts
    is_token = (positions >= 0) & (positions < counts[:, None])
    # Padding holds copies of the sample's first or last token.
    last = (counts - 1)[:, None]
    places = (ends - counts)[:, None] + positions.minimum(last).clamp(min=0)
    tokens = torch.zeros(shape.tokens, dtype=torch.int64)
    tokens[: sum(lengths)] = is_token.flatten().nonzero()[:, 0]
    bounds = torch.cat([torch.tensor([0]), ends, torch.tensor([shape.tokens])]).int()
    return {TOKENS: tokens, PLACES: places.clamp(max=shape.tokens - 1), BOUNDS: bounds}


@dataclass(frozen=True, eq=False)
class TokenPacking:
    """Maps between padded rows and a packed row, on the device of the model."""

    tokens: torch.Tensor
    """Index of each packed token in the flattened padded rows: (tokens,)."""
    places: torch.Tensor
    """Index in the packed row of each token of the padded rows: (rows, width)."""
    bounds: torch.Tensor
    """Start of each segment in the packed row, and the end of the last one, as int32."""

    @classmethod
    def of(cls, batch: Mapping[str, torch.Tensor]) -> "TokenPacking | None":
        """Returns the packing of a batch. None if the batch is only padded."""
        return cls(*(batch[name] for name in NAMES)) if TOKENS in batch else None

    @property
    def size(self) -> int:
        """Number of tokens of the packed row."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        return self.places.shape[1]

    def has_shape(self, value: torch.Tensor) -> bool:
        """Returns True if queries or keys (1, heads, tokens, size) belong to the packed row."""
        return value.shape[0] == 1 and value.shape[2] == self.size

    def restricts(self, window: int) -> bool:
        """Returns True if a window of attention excludes tokens of the widest sample."""
        return window < self.width

    @property
    def longest(self) -> int:
        """Upper bound of the segments' lengths, for kernels. It depends only on the shapes, so that
        it is constant in a CUDA graph.
        """
        return max(self.width, self.size // _GPU_STEPS + _LEAST_STEP)

    @cached_property
    def segments(self) -> list[int]:
        """Length of each segment with tokens. Synchronizes with the device."""
        lengths: list[int] = cast("Any", self.bounds.diff()).tolist()
        return [length for length in lengths if length]

    @property
    def owners(self) -> torch.Tensor:
        """Row that each packed token belongs to: (tokens,)."""
        return self.tokens // self.width

    @cached_property
    def _columns(self) -> torch.Tensor:
        return self.tokens % self.width

    def packed(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of padded rows as (1, tokens, …). Returns other tensors unchanged.

        Padded rows are (rows, width, …), or (1, width, …) if all rows are equal.
        """
        if value.dim() < 2 or value.shape[1] != self.width:
            return value
        if value.shape[0] == 1:
            return value[0].index_select(0, self._columns)[None]
        if value.shape[0] != self.places.shape[0]:
            return value
        return value.flatten(0, 1).index_select(0, self.tokens)[None]

    def padded(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a tensor (1, tokens, …) as (rows, width, …). Returns other tensors unchanged."""
        if value.dim() < 2 or value.shape[:2] != (1, self.size):
            return value
        rows, width = self.places.shape
        return value[0].index_select(0, self.places.flatten()).view(rows, width, *value.shape[2:])
