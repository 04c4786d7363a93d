"""Packs the tokens of padded rows into fewer rows that hold several samples each.

Converted models compute such rows. A mask keeps the samples of a row apart, so one graph computes
single samples and batches of any lengths. `packing` has the form for torch: one row for all tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from stoker.models.stages.base import bucket

TOKENS, PLACES, SEGMENTS = NAMES = ("row_tokens", "row_places", "row_segments")
"""Names of the packing's tensors among a converted model's inputs."""
MASK = "attention_mask"

_WIDTHS = (*range(8, 128, 8), *range(128, 257, 16))
"""Widths in tokens of rows with more than one sample. There are few, so that shapes repeat."""
_WIDTH_COST = 1 / 1500
"""Additional time of a token for each token of its row: attention computes all pairs of a row."""

Ints = npt.NDArray[np.int64]


class RowPlan(NamedTuple):
    """Positions of samples in rows."""

    width: int
    """Width of a row in tokens."""
    rows: Sequence[Sequence[int]]
    """Indices of the samples in each row."""

    @classmethod
    def separate(cls, size: int, width: int) -> "RowPlan":
        """Returns a plan with one row for each of `size` samples, in their order."""
        return cls(width, [[sample] for sample in range(size)])

    @property
    def cost(self) -> float:
        """Time of the rows, in tokens."""
        return len(self.rows) * self.width * (1 + self.width * _WIDTH_COST)


def plan_rows(lengths: Sequence[int]) -> RowPlan:
    """Returns the rows that take the least time.

    Args:
        lengths: number of tokens of each sample.
    """
    # Rounded up as the length of a padded batch, so a single sample costs the same.
    least = bucket(max(lengths))
    most = sum(lengths) + _WIDTHS[0] - 1
    widths = [least, *(width for width in _WIDTHS if least < width <= most)]
    return min((_filled(lengths, width) for width in widths), key=lambda plan: plan.cost)


def _filled(lengths: Sequence[int], width: int) -> RowPlan:
    """Fills rows of one width: each sample, longest first, into the fullest row that has space."""
    rows: list[list[int]] = []
    free: list[int] = []
    for sample in sorted(range(len(lengths)), key=lambda sample: -lengths[sample]):
        length = lengths[sample]
        able = [row for row, space in enumerate(free) if space >= length]
        if able:
            row = min(able, key=lambda row: free[row])
        else:
            row = len(rows)
            rows.append([])
            free.append(width)
        rows[row].append(sample)
        free[row] -= length
    return RowPlan(width, rows)


def row_inputs(mask: Ints, plan: RowPlan | None = None) -> list[Ints]:
    """Returns the tensors named by `NAMES` for a padded batch.

    Tokens beyond the samples of a row are copies of a token of the row, in a separate segment.

    Args:
        mask: attention mask (rows, width), 1 for the tokens of a sample.
        plan: positions of the samples. None: the rows that take the least time.
    """
    lengths: list[int] = mask.sum(1).tolist()
    starts: list[int] = mask.argmax(1).tolist()
    size, padded_width = mask.shape
    width, rows = plan or plan_rows(lengths)
    tokens = np.zeros((len(rows), width), np.int64)
    segments = np.full_like(tokens, size)
    places = np.zeros_like(mask)
    for row, samples in enumerate(rows):
        begin = 0
        for sample in samples:
            start, length = starts[sample], lengths[sample]
            end = begin + length
            first = sample * padded_width + start
            tokens[row, begin:end] = np.arange(first, first + length)
            segments[row, begin:end] = sample
            # Padding holds copies of the sample's last token.
            places[sample] = row * width + end - 1
            places[sample, start : start + length] = np.arange(begin, end) + row * width
            begin = end
        tokens[row, begin:] = tokens[row, 0]
    return [tokens, places, segments]


@dataclass(frozen=True, eq=False)
class RowPacking:
    """Maps between padded rows and packed rows, in a traced model.

    No method compares sizes that vary: a comparison would limit the traced model to them.
    """

    tokens: torch.Tensor
    """Index of each packed token in the flattened padded rows: (packed rows, packed width)."""
    places: torch.Tensor
    """Index of each padded token in the flattened packed rows: (rows, width)."""
    segments: torch.Tensor
    """Sample that each packed token belongs to: (packed rows, packed width)."""
    _masks: dict[tuple[bool, int | None], torch.Tensor] = field(
        default_factory=dict[tuple[bool, int | None], torch.Tensor], init=False
    )

    @classmethod
    def of(cls, batch: Mapping[str, torch.Tensor]) -> "RowPacking | None":
        """Returns the packing of a batch. None if the batch is only padded."""
        if TOKENS not in batch:
            return None
        packing = cls(*(batch[name] for name in NAMES))
        # A traced model knows nothing about the sizes of its inputs.
        library: Any = torch
        padded = (value for name, value in batch.items() if name not in NAMES)
        pairs = [(packing.segments, packing.tokens), *((value, packing.places) for value in padded)]
        for value, expected in pairs:
            library._check(value.shape[0] == expected.shape[0])
            library._check(value.shape[1] == expected.shape[1])
        return packing

    @property
    def width(self) -> int:
        """Width of the padded rows."""
        return self.places.shape[1]

    def has_shape(self, value: torch.Tensor) -> bool:
        """Returns True if queries or keys (packed rows, heads, tokens, size) have packed rows."""
        return _begins(value.transpose(1, 2), self.tokens.shape)

    def restricts(self, window: int) -> bool:
        """Returns True: a later batch may be longer than a window of attention."""
        return True

    def packed(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of padded rows in packed rows. Returns other tensors unchanged.

        Padded rows are (rows, width, …), or (1, width, …) if all rows are equal.
        """
        if _begins(value, (1, self.width)):
            return _taken(value, self.tokens % self.width)
        return _taken(value, self.tokens) if _begins(value, self.places.shape) else value

    def padded(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of packed rows in padded rows. Returns other tensors unchanged."""
        return _taken(value, self.places) if _begins(value, self.tokens.shape) else value

    def mask(self, window: int | None, *, is_causal: bool) -> torch.Tensor:
        """Returns a boolean mask of the keys that each query attends to: (packed rows, 1, packed
        width, packed width).

        Args:
            window: a token attends only to tokens at a smaller distance. None means all tokens.
            is_causal: True if a token does not attend to later tokens.
        """
        key = is_causal, window
        if key not in self._masks:
            mask = self.segments[:, None, :, None] == self.segments[:, None, None, :]
            positions = torch.arange(self.segments.shape[1], device=mask.device)
            distance = positions[:, None] - positions
            if is_causal:
                mask = mask & (distance >= 0)
            if window:
                mask = mask & (distance.abs() < window)
            self._masks[key] = mask
        return self._masks[key]


def _taken(value: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns (…indices, …) from the flattened rows of a value (rows, width, …)."""
    rows = value.flatten(0, 1).index_select(0, indices.flatten())
    return rows.view(*indices.shape, *value.shape[2:])


def _begins(value: torch.Tensor, sizes: Sequence[Any]) -> bool:
    """Returns True if the first two sizes of a tensor are certainly these."""
    return value.dim() >= 2 and all(
        statically_known_true(size == expected)
        for size, expected in zip(value.shape[:2], sizes, strict=True)
    )
