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
    """Shape (1, tokens), like `positions`."""
    positions: torch.Tensor
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
    block_tokens: int,
    spare_block: int,
    device: torch.device,
) -> Layout:
    """Returns the row for chunks.

    Args:
        tables: blocks of each chunk's sequence.
    """
    ids: list[int] = []
    spans: list[ChunkSpan] = []
    wanted: list[int] = []
    for chunk in chunks:
        spans.append(ChunkSpan(len(ids), chunk.start, len(chunk.tokens)))
        ids.extend(chunk.tokens)
        wanted.extend(range(len(ids) - chunk.rows, len(ids)))
    positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
    table = padded(tables, [-(-span.end // block_tokens) for span in spans], spare_block)
    sequence = np.repeat(np.arange(len(spans)), [span.count for span in spans])
    slots = table[sequence, positions // block_tokens] * block_tokens + positions % block_tokens
    packed = np.concatenate([np.asarray(ids, dtype=np.int64), positions, slots, wanted, table.flat])
    # One copy to the device instead of five.
    row = _tensor(packed.astype(np.int64)).to(device, non_blocking=True)
    count = len(ids)
    return Layout(
        ids=row[None, :count],
        positions=row[None, count : 2 * count],
        slots=row[2 * count : 3 * count],
        wanted=row[3 * count : 3 * count + len(wanted)],
        table=row[3 * count + len(wanted) :].view(table.shape).int(),
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
