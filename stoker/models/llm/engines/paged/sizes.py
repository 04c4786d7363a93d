"""Sizes of a paged cache and of its passes."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stoker.models.llm.engines.paged import varlen
from stoker.models.llm.engines.paged.attention import AttentionLayer
from stoker.models.llm.engines.paged.memory import block_bytes

log = logging.getLogger(__name__)

BLOCK_TOKENS = 32
"""Tokens per block, unless the kernel requires others."""
RESERVE_BYTES = 1 << 30
"""Bytes of a GPU that stay free for passes and captured steps."""
SHORT_TOKENS = 1024
"""Minimum tokens of a cache. A replica whose claim has no room for them fails to start, so that the
next claim is larger.
"""
LEAST_STEP_TOKENS, MOST_STEP_TOKENS = 2048, 8192
"""Minimum and maximum of the token limit of a pass on a GPU."""
STEP_PRODUCTS = 7.5e12
"""Number of multiplications in a pass that a current GPU computes in about 50 ms."""


@dataclass(frozen=True)
class Plan:
    """Size of a cache."""

    blocks: int
    block_tokens: int
    max_length: int
    """Maximum tokens of a sequence."""
    in_kernel: frozenset[int] = frozenset()
    """Layers whose attention the kernel for blocks computes."""


def planned(
    layers: Sequence[AttentionLayer],
    max_length: int,
    cache_bytes: int,
    device: torch.device,
    most_bytes: int | None = None,
) -> Plan:
    """Returns the size of a model's cache.

    Args:
        max_length: maximum tokens of a sequence by the model's configuration.
        cache_bytes: maximum bytes of the cache. One sequence of maximum length has room in any
            case, unless a graphics device or `most_bytes` is smaller.
        most_bytes: bytes that the cache on a graphics device never exceeds. None: no limit.

    Raises:
        torch.OutOfMemoryError: `most_bytes` has no room for a short sequence, although the device
            has.
    """
    in_kernel = frozenset(
        number for number, layer in enumerate(layers) if varlen.supported(layer, device)
    )
    if in_kernel and not varlen.agrees([layers[number] for number in in_kernel], device):
        in_kernel = frozenset[int]()
    block_tokens = varlen.BLOCK_TOKENS if in_kernel else BLOCK_TOKENS
    size = block_bytes(layers, block_tokens)
    least = -(-max_length // block_tokens)
    if device.type != "cuda":
        return Plan(max(least, cache_bytes // size), block_tokens, max_length, in_kernel)
    free = free_bytes(device)
    most = max(free - RESERVE_BYTES, free // 2) // size
    if most_bytes is not None:
        short = min(least, -(-SHORT_TOKENS // block_tokens))
        if most_bytes // size < short <= most:
            raise torch.OutOfMemoryError("the replica's claim has no room for keys and values")
        most = min(most, most_bytes // size)
    blocks = min(max(least, cache_bytes // size), most)
    if blocks < least:
        log.warning("device memory has room for %d tokens of %d", blocks * block_tokens, max_length)
    return Plan(blocks, block_tokens, min(max_length, blocks * block_tokens), in_kernel)


def free_bytes(device: torch.device) -> int:
    """Returns the free bytes of a GPU and the unused bytes of torch's own pool."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def step_tokens(model: Any) -> int | None:
    """Returns the maximum tokens of a pass. None: the scheduler's default."""
    if model.device.type != "cuda":
        return None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    fitting = int(STEP_PRODUCTS / max(parameters, 1))
    return max(LEAST_STEP_TOKENS, min(MOST_STEP_TOKENS, fitting))
