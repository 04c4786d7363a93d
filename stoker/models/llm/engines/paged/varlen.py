"""Attention over blocks with torch's FlashAttention kernel, on CUDA devices in half precision."""

import inspect
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch.nn.attention import varlen

from stoker.models.llm.engines.paged import explicit
from stoker.models.llm.engines.paged.attention import (
    AttentionInputs,
    AttentionLayer,
    AttentionPass,
)
from stoker.models.llm.engines.paged.gathered import GatheredAttention
from stoker.models.llm.engines.paged.layout import ChunkSpan, Layout
from stoker.models.llm.engines.paged.memory import BlockMemory

log = logging.getLogger(__name__)
# It logs its choice of a kernel for each layer of each pass.
logging.getLogger(varlen.__name__).setLevel(logging.WARNING)

BLOCK_TOKENS = 256
"""The kernel accepts blocks of a multiple of this number of tokens."""
_LARGEST_HEAD, _HEAD_STEP = 256, 8
_TOLERANCE = 3e-2
"""Largest difference due to half precision, as a share of the largest value."""
_OLDEST = (8, 0)
"""Lowest compute capability that has the kernel."""


def supported(layer: AttentionLayer, device: torch.device) -> bool:
    """Returns True if the kernel computes this layer."""
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= _OLDEST
        and "block_table" in inspect.signature(varlen.varlen_attn).parameters
        and layer.dtype in (torch.float16, torch.bfloat16)
        and layer.cap is None
        and layer.key_size == layer.value_size <= _LARGEST_HEAD
        and layer.key_size % _HEAD_STEP == 0
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

    def attend(self, layer: int, new: AttentionInputs) -> torch.Tensor:
        self._memory.write(layer, self._slots, new.key, new.value)
        query = new.query.contiguous()
        output = varlen.varlen_attn(
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
            return_aux=None if new.sinks is None else varlen.AuxRequest(lse=True),
        )
        if new.sinks is None:
            return cast("torch.Tensor", output)
        output, logsumexp = output
        # torch documents the shape (tokens, heads). Its kernel returns (heads, tokens).
        share = explicit.share_of_keys(logsumexp.T, new.sinks.float())
        return output * share[:, :, None].to(output.dtype)

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


class _MixedPass:
    """Implements `AttentionPass` with a pass for each layer."""

    def __init__(self, passes: Sequence[AttentionPass]) -> None:
        self._passes = passes

    def attend(self, layer: int, new: AttentionInputs) -> torch.Tensor:
        return self._passes[layer].attend(layer, new)


class MixedAttention:
    """Implements `BlockAttention` with the kernel for some layers, and gathers keys for others."""

    def __init__(self, memory: BlockMemory, fitting: Collection[int]) -> None:
        """
        Args:
            fitting: layers that the kernel computes.
        """
        self._kernel, self._other = VarlenAttention(memory), GatheredAttention(memory)
        self._is_fitting = [layer in fitting for layer in range(len(memory.keys))]

    def packed(self, layout: Layout) -> _MixedPass:
        return self._mixed(self._kernel.packed(layout), self._other.packed(layout))

    def stepped(
        self, slots: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
    ) -> _MixedPass:
        passes = (part.stepped(slots, table, lengths) for part in (self._kernel, self._other))
        return self._mixed(*passes)

    def _mixed(self, kernel: AttentionPass, other: AttentionPass) -> _MixedPass:
        return _MixedPass([kernel if fits else other for fits in self._is_fitting])


@torch.inference_mode()
def agrees(layers: Sequence[AttentionLayer], device: torch.device) -> bool:
    """Returns True if the kernel computes what torch's scaled dot product computes, for sequences
    of several blocks that begin, continue and draw.
    """
    spans = [ChunkSpan(0, 0, 5), ChunkSpan(5, 300, 3), ChunkSpan(8, 290, 1)]
    drawing = [ChunkSpan(0, 299, 1), ChunkSpan(1, 40, 1)]
    try:
        worst = max(
            _difference(layer, part, device) for layer in {*layers} for part in (spans, drawing)
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Kernels fail in ways that depend on the device and its driver.
        log.warning("the kernel for blocks does not run: %r", error)
        return False
    log.info("the kernel for blocks differs by %.1e", worst)
    return worst <= _TOLERANCE


def _difference(layer: AttentionLayer, spans: list[ChunkSpan], device: torch.device) -> float:
    """Returns the largest difference between both kernels, as a share of the largest value."""
    memory = BlockMemory([replace(layer, source=None)], 2 * len(spans), BLOCK_TOKENS, device)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, layer.dtype)

    for part in (memory.keys[0], memory.values[0]):
        part.copy_(drawn(*part.shape))
        part[memory.spare_block] = 0
    tokens = sum(span.count for span in spans)
    table = torch.arange(2 * len(spans), dtype=torch.int32, device=device).view(-1, 2)
    places = [
        2 * number * BLOCK_TOKENS + place
        for number, span in enumerate(spans)
        for place in range(span.start, span.end)
    ]
    row = torch.zeros(1, tokens, dtype=torch.long, device=device)
    slots = torch.tensor(places, device=device)
    layout = Layout(row, row, row, slots, table, spans, row[0])
    new = AttentionInputs(
        drawn(tokens, layer.heads, layer.key_size),
        drawn(tokens, layer.key_heads, layer.key_size),
        drawn(tokens, layer.key_heads, layer.value_size),
        scale=None,
        window=layer.window,
        sinks=drawn(layer.heads) if layer.has_sinks else None,
    )
    ours, known = (
        kind(memory).packed(layout).attend(0, new).float()
        for kind in (VarlenAttention, GatheredAttention)
    )
    difference = float((ours - known).abs().max() / known.abs().max())
    return math.inf if math.isnan(difference) else difference
