"""Attention within the samples of a packed row, registered with transformers' attention interface.

On CUDA, one kernel computes all samples. On other devices, each sample is computed in turn. In a
traced model, a mask separates the samples of each row.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from stoker.models.engines.packed_rows import RowPacking
from stoker.models.engines.packing import TokenPacking

NAME = "stoker_packed"
"""Name of the attention function. transformers creates no mask for it."""

_HALF = (torch.float16, torch.bfloat16)
_ALIGNMENT = 8
"""The CUDA kernels need head sizes that are multiples of this number."""
_FROM_TOP_LEFT = 1
"""Value of `custom_mask_type` for causal attention in torch's memory-efficient kernel."""
_UNSUPPORTED = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments of the attention interface that change the result and are not supported here."""


class NotPackableError(Exception):
    """Raised if a model's attention cannot be computed on a packed row."""


class PackedPass:
    """One forward pass over packed rows."""

    def __init__(self, packing: TokenPacking | RowPacking) -> None:
        self.packing = packing
        self.calls = 0
        """Number of attention layers that were computed."""


_pass: ContextVar[PackedPass] = ContextVar("packed pass")


@contextmanager
def packed_pass(packing: TokenPacking | RowPacking) -> Generator[PackedPass]:
    """Makes the attention function compute on this packing within the block."""
    current = PackedPass(packing)
    token = _pass.set(current)
    try:
        yield current
    finally:
        _pass.reset(token)


@dataclass(frozen=True)
class _Attention:
    """Options of an attention layer."""

    scale: float
    """Factor of the attention scores."""
    is_causal: bool
    """True if a token does not attend to later tokens."""
    window: int | None
    """A token attends only to tokens at a smaller distance. None means all tokens."""

    def mask(self, length: int, device: torch.device) -> torch.Tensor | None:
        """Returns a boolean mask (queries, keys) for a sample. None if the window restricts
        nothing.
        """
        if self.window is None or length <= self.window:
            return None
        positions = torch.arange(length, device=device)
        distance = positions[:, None] - positions
        return (distance < self.window) & (distance >= (0 if self.is_causal else 1 - self.window))


def _packed(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention as transformers' attention functions do.

    Args:
        query: (packed rows, heads, tokens, size), as `key` and `value`, which may have fewer heads.
        options: `scaling`, `is_causal` and `sliding_window` change the result.

    Returns:
        (packed rows, tokens, heads, size), and None for the scores.
    """
    current = _pass.get()
    packing = current.packing
    unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if attention_mask is not None or unsupported:
        raise NotPackableError(f"attention uses {', '.join(unsupported) or 'its own mask'}")
    if not all(packing.has_shape(tensor) for tensor in (query, key)):
        raise NotPackableError(f"attention runs on {tuple(query.shape)} and {tuple(key.shape)}")
    current.calls += 1
    is_causal, window = options.get("is_causal"), options.get("sliding_window")
    attention = _Attention(
        scale=options.get("scaling") or query.shape[-1] ** -0.5,
        is_causal=bool(module.is_causal if is_causal is None else is_causal),
        window=window if window and packing.restricts(window) else None,
    )
    if isinstance(packing, RowPacking):
        return _in_rows(packing, (query, key, value), attention), None
    inputs = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    compute = _on_cuda if query.is_cuda else _by_segment
    return compute(packing, inputs, attention)[None], None


AttentionInterface.register(NAME, _packed)


def _in_rows(
    packing: RowPacking, inputs: Sequence[torch.Tensor], attention: _Attention
) -> torch.Tensor:
    """Returns (rows, tokens, heads, size) from tensors (rows, heads, tokens, size)."""
    query, key, value = inputs
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    mask = packing.mask(attention.window, is_causal=attention.is_causal)
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attention.scale)
    return output.transpose(1, 2)


def _by_segment(
    packing: TokenPacking, inputs: Sequence[torch.Tensor], attention: _Attention
) -> torch.Tensor:
    """Returns (tokens, heads, size) from queries, keys and values of that shape."""
    is_grouped = inputs[0].shape[1] != inputs[1].shape[1]
    by_head: list[Any] = [tensor.transpose(0, 1)[None] for tensor in inputs]
    parts: list[torch.Tensor] = []
    for segment in zip(*(tensor.split(packing.segments, 2) for tensor in by_head), strict=True):
        mask = attention.mask(segment[0].shape[2], segment[0].device)
        output = scaled_dot_product_attention(
            *segment,
            attn_mask=mask,
            is_causal=attention.is_causal and mask is None,
            scale=attention.scale,
            enable_gqa=is_grouped,
        )
        parts.append(output)
    return torch.cat(parts, 2)[0].transpose(0, 1)


def _on_cuda(
    packing: TokenPacking, inputs: Sequence[torch.Tensor], attention: _Attention
) -> torch.Tensor:
    """Returns (tokens, heads, size) from queries, keys and values of that shape."""
    query, _, value = inputs
    size = value.shape[-1]
    aligned = -(-max(query.shape[-1], size) // _ALIGNMENT) * _ALIGNMENT
    padded = [pad(tensor, (0, aligned - tensor.shape[-1])) for tensor in inputs]
    compute = _flash if query.dtype in _HALF else _efficient
    return compute(packing, padded, attention)[..., :size]


def _flash(
    packing: TokenPacking, inputs: Sequence[torch.Tensor], attention: _Attention
) -> torch.Tensor:
    """Computes attention in half precision with torch's FlashAttention kernel."""
    options: dict[str, Any] = {}
    if attention.is_causal or attention.window:
        before = attention.window - 1 if attention.window else -1
        options["window_size"] = (before, 0 if attention.is_causal else before)
    query, key, value = inputs
    if query.shape[1] != key.shape[1]:
        options["enable_gqa"] = True
    bounds, longest = packing.bounds, packing.longest
    kernel: Any = varlen_attn
    return kernel(
        query, key, value, bounds, bounds, longest, longest, scale=attention.scale, **options
    )


def _efficient(
    packing: TokenPacking, inputs: Sequence[torch.Tensor], attention: _Attention
) -> torch.Tensor:
    """Computes attention in single precision with torch's memory-efficient kernel, which nested
    tensors also use.
    """
    if attention.window:
        raise NotPackableError("there is no kernel for windows in single precision")
    query, key, value = inputs
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    bounds, longest = packing.bounds, packing.longest
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
        _FROM_TOP_LEFT if attention.is_causal else 0,
        scale=attention.scale,
    )
    return output[0][0]
