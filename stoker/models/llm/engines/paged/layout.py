"""Arranges chunks of sequences as one row of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stoker.models.llm.engines.paged.attention import AttentionPass

if TYPE_CHECKING:
    from stoker.models.llm.runner import Chunk

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChunkSpan:
    """Place of one chunk in the row."""

    row: int
    """Place of its first token in the row."""
    start: int
    """Number of the sequence's tokens before the chunk."""
    count: int
    """Number of its tokens."""

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True)
class Layout:
    """Row of tokens from several sequences, on the model's device."""

    ids: torch.Tensor
    """Shape (1, tokens), like `places` and `positions`."""
    places: torch.Tensor
    """Number of the sequence's tokens before each token."""
    positions: torch.Tensor
    """`places` plus the shift of each sequence. See `PositionAxes.shift`."""
    slots: torch.Tensor
    """Slot in the memory for the keys and values of each token, shape (tokens,)."""
    table: torch.Tensor
    """Blocks of each sequence: int32 (sequences, blocks), padded with the spare block."""
    spans: list[ChunkSpan]
    wanted: torch.Tensor
    """Places in the row with needed logits."""


class BlockAttention(Protocol):
    """Kernel that attends to keys and values in blocks."""

    def packed(self, layout: Layout) -> AttentionPass:
        """Returns the attention of a pass over any chunks."""
        ...

    def stepped(
        self, slots: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
    ) -> AttentionPass:
        """Returns the attention of a pass over one token of each sequence. Computes on the device
        only, so that a CUDA graph may contain the call.

        Args:
            slots: slot of each token, int64.
            table: blocks of each sequence, int32.
            lengths: tokens of each sequence including the new one, int32.
        """
        ...


def arranged(
    chunks: "Sequence[Chunk]",
    tables: Sequence[Sequence[int]],
    shifts: Sequence[int],
    *,
    block_tokens: int,
    spare_block: int,
    device: torch.device,
) -> Layout:
    """Returns the row for chunks.

    Args:
        tables: blocks of each chunk's sequence.
        shifts: shift of the positions of each chunk's sequence.
    """
    ids: list[int] = []
    spans: list[ChunkSpan] = []
    wanted: list[int] = []
    for chunk in chunks:
        spans.append(ChunkSpan(len(ids), chunk.start, len(chunk.tokens)))
        ids.extend(chunk.tokens)
        wanted.extend(range(len(ids) - chunk.rows, len(ids)))
    places = np.concatenate([np.arange(span.start, span.end) for span in spans])
    table = padded(tables, [-(-span.end // block_tokens) for span in spans], spare_block)
    counts = [span.count for span in spans]
    sequence = np.repeat(np.arange(len(spans)), counts)
    slots = table[sequence, places // block_tokens] * block_tokens + places % block_tokens
    positions = places + np.repeat(shifts, counts)
    rows = (np.asarray(ids, dtype=np.int64), places, positions, slots)
    # One copy to the device instead of six.
    packed = np.concatenate([*rows, wanted, table.flat]).astype(np.int64)
    row = _tensor(packed).to(device, non_blocking=True)
    each = row[: 4 * len(ids)].view(4, 1, -1)
    more = row[4 * len(ids) :]
    return Layout(
        ids=each[0],
        places=each[1],
        positions=each[2],
        slots=each[3, 0],
        wanted=more[: len(wanted)],
        table=more[len(wanted) :].view(table.shape).int(),
        spans=spans,
    )


def padded(tables: Sequence[Sequence[int]], counts: Sequence[int], spare_block: int) -> Ints:
    """Returns the first blocks of each table, padded to the longest count."""
    rows = np.full((len(tables), max(counts)), spare_block, dtype=np.int64)
    for row, table, count in zip(rows, tables, counts, strict=True):
        row[:count] = table[:count]
    return rows


def _tensor(values: Ints) -> torch.Tensor:
    return torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]
