"""Attention among the samples of a packed row, registered with transformers' attention interface.

On CUDA one kernel computes all samples. On other devices each sample is computed in turn.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from stoker.models.engines.packing import Packing

NAME = "stoker_packed"
"""Name of the attention function. transformers makes no masks for it."""

_HALF = (torch.float16, torch.bfloat16)
_ALIGNMENT = 8
"""The CUDA kernels read this many numbers of a head at once."""
_FROM_TOP_LEFT = 1
"""Code of causal attention in torch's memory-efficient kernel."""
_UNSUPPORTED = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments of the attention interface that change its result, besides those computed here."""


class NotPackableError(Exception):
    """Raised if a model's attention cannot be computed on a packed row."""


class PackedPass:
    """One forward pass over a packed row."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.calls = 0
        """Number of computed attentions."""


_pass: ContextVar[PackedPass] = ContextVar("packed pass")


@contextmanager
def packed_pass(packing: Packing) -> Generator[PackedPass]:
    """Makes the attention function compute on this packing within the block."""
    current = PackedPass(packing)
    token = _pass.set(current)
    try:
        yield current
    finally:
        _pass.reset(token)


def _packed(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention as transformers' attention functions do.

    Args:
        query: (1, heads, tokens, size), as `key` and `value`, which may have fewer heads.
        scaling: factor of the scores. None: the square root of the heads' size.
        sliding_window: a token sees tokens nearer than this. None: all tokens.

    Returns:
        (1, tokens, heads, size), and None for the scores.
    """
    current = _pass.get()
    packing = current.packing
    unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if attention_mask is not None or unsupported:
        raise NotPackableError(f"attention uses {', '.join(unsupported) or 'its own mask'}")
    if any(tensor.shape[0] != 1 or tensor.shape[2] != packing.size for tensor in (query, key)):
        raise NotPackableError(f"attention runs on {tuple(query.shape)} and {tuple(key.shape)}")
    current.calls += 1
    causal = module.is_causal if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if sliding_window and sliding_window <= packing.width else None
    compute = _on_cuda if query.is_cuda else _by_segment
    return compute(packing, query, key, value, scale, causal=bool(causal), window=window), None


AttentionInterface.register(NAME, _packed)


def _by_segment(
    packing: Packing,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    is_grouped = query.shape[1] != key.shape[1]
    parts: list[torch.Tensor] = []
    for start, end in packing.segments:
        own = (tensor[:, :, start:end] for tensor in (query, key, value))
        mask = _mask(end - start, window, causal=causal, device=query.device) if window else None
        parts.append(
            scaled_dot_product_attention(
                *own,
                attn_mask=mask,
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=is_grouped,
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2)


def _mask(length: int, window: int, *, causal: bool, device: torch.device) -> torch.Tensor | None:
    """Returns the tokens (queries, keys) that see each other. None if all do."""
    if length <= window and not causal:
        return None
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions
    return (distance >= 0 if causal else distance > -window) & (distance < window)


def _on_cuda(
    packing: Packing,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    size = value.shape[-1]
    width = max(query.shape[-1], size)
    missing = -width % _ALIGNMENT + width
    rows = [
        pad(tensor[0].transpose(0, 1), (0, missing - tensor.shape[-1]))
        for tensor in (query, key, value)
    ]
    if query.dtype in _HALF:
        output = _flash(packing, rows, scale, causal=causal, window=window)
    else:
        output = _efficient(packing, rows, scale, causal=causal, window=window)
    return output[None, :, :, :size]


def _flash(
    packing: Packing, rows: list[torch.Tensor], scale: float, *, causal: bool, window: int | None
) -> torch.Tensor:
    """Computes (tokens, heads, size) in half precision."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {}
    if causal or window:
        before = window - 1 if window else -1
        options["window_size"] = (before, 0 if causal else before)
    if rows[0].shape[1] != rows[1].shape[1]:
        options["enable_gqa"] = True
    bounds, longest = packing.bounds, packing.width
    output: Any = varlen_attn(*rows, bounds, bounds, longest, longest, scale=scale, **options)
    return output


def _efficient(
    packing: Packing, rows: list[torch.Tensor], scale: float, *, causal: bool, window: int | None
) -> torch.Tensor:
    """Computes (tokens, heads, size) in single precision, by the kernel that also computes nested
    tensors.
    """
    if window:
        raise NotPackableError("there is no kernel for windows in single precision")
    query, key, value = rows
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    bounds, longest = packing.bounds, packing.width
    output: Any = torch.ops.aten._efficient_attention_forward(
        query[None],
        key[None],
        value[None],
        None,
        bounds,
        bounds,
        longest,
        longest,
        0.0,
        _FROM_TOP_LEFT if causal else 0,
        scale=scale,
    )[0]
    return output[0]
