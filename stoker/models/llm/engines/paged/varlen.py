"""Attention over blocks with torch's FlashAttention kernel, on CUDA devices in half precision."""

import inspect
from collections.abc import Sequence

import torch
from torch.nn.attention import varlen

from stoker.models.llm.engines.paged.attention import Inputs, Layer
from stoker.models.llm.engines.paged.layout import Layout
from stoker.models.llm.engines.paged.memory import BlockMemory

BLOCK_TOKENS = 256
"""The kernel accepts blocks of a multiple of this number of tokens."""
_LARGEST_HEAD, _HEAD_STEP = 256, 8
_OLDEST = (8, 0)
"""Lowest compute capability that has the kernel."""


def supported(layers: Sequence[Layer], device: torch.device) -> bool:
    """Returns True if the kernel computes these layers."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= _OLDEST
        and "block_table" in inspect.signature(varlen.varlen_attn_out).parameters
        and all(
            layer.dtype in (torch.float16, torch.bfloat16)
            and layer.key_size == layer.value_size <= _LARGEST_HEAD
            and layer.key_size % _HEAD_STEP == 0
            for layer in layers
        )
    )


class VarlenPass:
    """Implements `AttentionPass`."""

    def __init__(
        self,
        memory: BlockMemory,
        *,
        slots: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        begins: torch.Tensor,
        longest: int,
    ) -> None:
        """
        Args:
            slots: slot of each new token's keys and values.
            table: blocks of each sequence.
            lengths: tokens of each sequence including the new ones, int32.
            begins: place of each sequence's first new token in the row and, last, the number of
                tokens, int32.
            longest: maximum new tokens of a sequence.
        """
        self._memory = memory
        self._slots = slots
        self._table = table
        self._lengths = lengths
        self._begins = begins
        self._longest = longest

    def attend(self, layer: int, new: Inputs) -> torch.Tensor:
        self._memory.write(layer, self._slots, new.key, new.value)
        query = new.query.contiguous()
        output = torch.empty_like(query)
        varlen.varlen_attn_out(
            output,
            query,
            self._memory.keys[layer],
            self._memory.values[layer],
            self._begins,
            # Ignored, because the lengths are given.
            self._begins,
            self._longest,
            self._table.shape[1] * self._memory.block_tokens,
            scale=new.scale,
            window_size=self._window(new.window),
            enable_gqa=query.shape[1] != new.key.shape[1],
            seqused_k=self._lengths,
            block_table=self._table,
        )
        return output

    def _window(self, window: int | None) -> tuple[int, int]:
        """Returns how many tokens before and after itself a token attends to. -1 means all."""
        if window is not None:
            return window - 1, 0
        # A single new token is the last one. Without a limit, the kernel computes heads that share
        # keys together.
        return -1, -1 if self._longest == 1 else 0


class VarlenAttention:
    """Implements `BlockAttention`."""

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory

    def packed(self, layout: Layout) -> VarlenPass:
        spans = layout.spans
        ends = torch.tensor(
            [0, *(span.row + span.count for span in spans), *(span.end for span in spans)],
            dtype=torch.int32,
        ).to(layout.slots.device, non_blocking=True)
        begins, lengths = ends[: len(spans) + 1], ends[len(spans) + 1 :]
        return VarlenPass(
            self._memory,
            slots=layout.slots,
            table=layout.table,
            lengths=lengths,
            begins=begins,
            longest=max(span.count for span in spans),
        )

    def stepped(
        self, slots: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
    ) -> VarlenPass:
        begins = torch.arange(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        return VarlenPass(
            self._memory, slots=slots, table=table, lengths=lengths, begins=begins, longest=1
        )
