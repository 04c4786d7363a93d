"""Attention of packed passes, registered with transformers' attention interface.

A packed pass computes tokens of several sequences as one row. Each attention layer of the model
calls the function registered here, which hands its queries, keys and values to the pass that the
runner has begun.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from stoker.models.llm.engines.paged import methods
from stoker.models.llm.engines.positions import PositionAxes, longest

NAME = "stoker_paged"
"""Name of the attention function within transformers."""
_UNSUPPORTED = ("position_bias", "head_mask")
"""Options of attention functions that no packed pass can compute."""


class UnfitAttentionError(Exception):
    """The model's attention cannot be computed over blocks of keys and values."""


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Inputs of an attention layer: the new tokens of all sequences."""

    query: torch.Tensor
    """Shape (tokens, heads, size), like `key` and `value`."""
    key: torch.Tensor
    value: torch.Tensor
    scale: float | None
    window: int | None
    """Number of latest tokens that a token attends to, including itself. None: all."""
    cap: float | None = None
    """Soft cap of the scores. None: the scores have no cap."""
    sinks: torch.Tensor | None = None
    """Score of each head's sink, shape (heads,). None: no head has one."""

    @property
    def is_plain(self) -> bool:
        """True if torch's scaled dot product attention supports it."""
        return self.cap is None and self.sinks is None


class AttentionPass(Protocol):
    """Computes the attention layers of one packed pass."""

    def attend(self, layer: int, new: AttentionInputs) -> torch.Tensor:
        """Stores new keys and values, and returns the attention's output: (tokens, heads, value
        size).
        """
        ...


def implement(model: Any, name: str) -> str:
    """Sets the attention implementation of a model's language part. Returns the previous one.

    Vision towers keep theirs.
    """
    config = model.config
    text = config.get_text_config(decoder=True)
    former = text._attn_implementation
    if older := methods.layers(model):
        # Not through transformers, which creates masks for its own implementations.
        text._attn_implementation_internal = name
        for module in older:
            if name == NAME:
                methods.replace(module, _attended)
            else:
                methods.restore(module)
        return former
    parts = [part for part in config.sub_configs if getattr(config, part) is text]
    model.set_attn_implementation({parts[0]: name} if parts else name)
    return former


class _Current(threading.local):
    attention_pass: AttentionPass | None = None


_current = _Current()


@contextmanager
def computing(attention_pass: AttentionPass) -> Generator[None]:
    """Computes the forward passes within the context as this packed pass."""
    _current.attention_pass = attention_pass
    try:
        yield
    finally:
        _current.attention_pass = None


def _attention(  # noqa: PLR0917 — transformers passes them by position
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Implements transformers' attention interface. Tensors have the shape (1, heads, tokens,
    size).
    """
    # transformers makes no mask for this function. A mask is the model's own.
    if (
        mask is not None
        or options.get("is_causal") is False
        or any(options.get(name) is not None for name in _UNSUPPORTED)
    ):
        raise UnfitAttentionError("the model's attention has options that no packed pass supports")
    limits = {"cap": options.get("softcap"), "sinks": options.get("s_aux")}
    window = options.get("sliding_window")
    return _attended(module.layer_idx, query, key, value, scaling, window, **limits), None


def _attended(  # noqa: PLR0917 — see `methods.Attend`
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    window: int | None,
    **limits: Any,
) -> torch.Tensor:
    """Returns the output (1, tokens, heads, size) for tensors of shape (1, heads, tokens, size)."""
    if _current.attention_pass is None:
        raise RuntimeError("the attention of packed passes was called outside a packed pass")
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    new = AttentionInputs(query, key, value, scale, window, **limits)
    return _current.attention_pass.attend(layer, new)[None]


AttentionInterface.register(NAME, _attention)


@dataclass(frozen=True)
class AttentionLayer:
    """Attention layer of a model, as observed in a pass."""

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    window: int | None
    dtype: torch.dtype
    cap: float | None = None
    has_sinks: bool = False
    source: int | None = None
    """Earlier layer whose keys and values it uses. None: it has its own."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values, unless an earlier layer has them."""
        if self.source is not None:
            return 0
        return self.key_heads * (self.key_size + self.value_size) * self.dtype.itemsize


class _Recording:
    """Pass that records the layers and computes nothing."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, AttentionLayer]] = []
        self._inputs: list[tuple[int, AttentionInputs]] = []
        """Layers and their tensors, which are not freed, so that no two have the same address."""

    def attend(self, layer: int, new: AttentionInputs) -> torch.Tensor:
        tokens, heads, key_size = new.query.shape
        _, key_heads, value_size = new.value.shape
        shape = AttentionLayer(
            heads,
            key_heads,
            key_size,
            value_size,
            new.window,
            new.key.dtype,
            new.cap,
            new.sinks is not None,
            self._source(new),
        )
        self._inputs.append((layer, new))
        self.layers.append((layer, shape))
        return new.query.new_zeros(tokens, heads, value_size)

    def _source(self, new: AttentionInputs) -> int | None:
        """Returns the layer with the same keys and values. None if they are new."""
        for layer, known in self._inputs:
            if all(
                ours.data_ptr() == theirs.data_ptr()
                for ours, theirs in ((known.key, new.key), (known.value, new.value))
            ):
                return layer
        return None


@torch.inference_mode()
def observe(model: Any, axes: PositionAxes) -> list[AttentionLayer]:
    """Returns the attention layers of a model that uses the function registered here.

    Raises `UnfitAttentionError` if not every layer calls it exactly once, or if a window that the
    configuration states does not reach the function.
    """
    recording = _Recording()
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    with computing(recording):
        model(input_ids=ids, position_ids=axes.of_text(ids, ids), use_cache=False)
    text = model.config.get_text_config(decoder=True)
    count = text.num_hidden_layers
    if sorted(layer for layer, _ in recording.layers) != list(range(count)):
        raise UnfitAttentionError("not every layer of the model has its own attention")
    layers = [shape for _, shape in sorted(recording.layers, key=lambda pair: pair[0])]
    windows = [_effective(layer.window, text) for layer in layers]
    # Older models have no masks. Their windows were read from their layers.
    if not methods.layers(model) and windows != _stated_windows(text, count):
        raise UnfitAttentionError("the model's windows are not arguments of its attention")
    return layers


def _effective(window: int | None, config: Any) -> int | None:
    """Returns the window. None if it is at least as wide as any sequence."""
    return None if window is None or window >= longest(config) else window


def _stated_windows(config: Any, count: int) -> list[int | None]:
    """Returns the window of each layer by the configuration.

    A model may apply a window by its mask alone. Short prompts would not reveal that.
    """
    window = _effective(getattr(config, "sliding_window", None), config)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * count
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnfitAttentionError(f"the model has layers of the kind {min(unknown)}")
    return [window if kind == "sliding_attention" else None for kind in kinds]
