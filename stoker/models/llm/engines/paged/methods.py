"""Attention of older models. It is a method of their attention layers and not an exchangeable
function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float, int | None], torch.Tensor]
"""Receives a layer, its queries, keys and values (1, heads, tokens, size), the scale and the
window. Returns the output (1, tokens, heads, size).
"""


@dataclass(frozen=True)
class _Method:
    """Reads a layer's settings."""

    scale: Callable[[Any], float]
    layer: str = "layer_idx"
    """Name of the attribute with the number of the layer."""
    window: Callable[[Any], int | None] = lambda _: None


def _divided(module: Any) -> float:
    return 1 / module.scale_attn


def _local(module: Any) -> int | None:
    return module.config.window_size if module.attention_type == "local" else None


_METHODS: Mapping[str, _Method] = {
    "CodeGenAttention": _Method(_divided),
    "GPTJAttention": _Method(_divided),
    "GPTNeoSelfAttention": _Method(lambda _: 1.0, "layer_id", _local),
    "GPTNeoXJapaneseAttention": _Method(lambda module: 1 / module.norm_factor),
}
"""Maps classes of layers to their settings. The method is `_attn` in all of them."""


def layers(model: Any) -> list[Any]:
    """Returns the model's layers with such a method."""
    return [module for module in model.modules() if type(module).__name__ in _METHODS]


def replace(module: Any, attend: Attend) -> None:
    """Makes a layer call `attend`."""
    method = _METHODS[type(module).__name__]
    number, scale, window = (
        getattr(module, method.layer),
        method.scale(module),
        method.window(module),
    )

    def attended(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any = None
    ) -> tuple[torch.Tensor, None]:
        # CodeGen's positions are in float32 in any precision of the model.
        query, key = query.to(value.dtype), key.to(value.dtype)
        return attend(number, query, key, value, scale, window).transpose(1, 2), None

    module._attn = attended


def restore(module: Any) -> None:
    """Restores a layer's own method."""
    module.__dict__.pop("_attn", None)
