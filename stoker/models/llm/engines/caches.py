"""Handles the cache that a transformers language model keeps of a sequence: keys and values, or a
state.

Most models keep the keys and values of all positions, so sequences can be computed together. Caches
of other kinds (windows, states, sparse attention's indices) belong to one sequence and stay as the
model created them.
"""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

_NAMES = ("past_key_values", "cache_params", "state")
_GROWING = ("keys", "values", "indexer_keys")
"""Parts of a layer's cache that hold every token, with shape (rows, [heads,] tokens, size). All
other parts have a fixed size.
"""


@dataclass(frozen=True)
class Footprint:
    """Cache size of sequences in bytes."""

    a_sequence: int
    """Bytes per sequence, independent of its length."""
    a_token: int

    def of(self, sequences: int, tokens: int) -> int:
        """Returns the bytes of a number of sequences with `tokens` tokens in total."""
        return sequences * self.a_sequence + tokens * self.a_token


class Caches:
    """Creates the caches of a model's sequences."""

    def __init__(self, model: Any) -> None:
        accepted = inspect.signature(model.forward).parameters
        self._config = model.config
        self.name = next(name for name in _NAMES if name in accepted)
        """The model's name for its cache, as an argument and in its outputs."""
        self._given = self.name in _NAMES[:2] and model._supports_default_dynamic_cache()

    def empty(self) -> Any:
        """Returns the cache of a sequence without computed tokens. None if the first pass creates
        it.
        """
        return DynamicCache(config=self._config) if self._given else None


def shareable(cache: Any) -> bool:
    """Returns True if a cache consists only of keys and values of all positions."""
    return type(cache) is DynamicCache and all(
        type(layer) is DynamicLayer and layer.is_initialized for layer in cache.layers
    )


def footprint(cache: Any) -> Footprint:
    """Returns the size of one sequence's cache as a function of its length.

    A window is counted as if it grew with the sequence. That overestimates its size and never
    underestimates it.
    """
    growing = [
        part
        for layer in getattr(cache, "layers", ())
        for name in _GROWING
        if torch.is_tensor(part := getattr(layer, name, None)) and part.numel()
    ]
    counted = {id(part) for part in growing}
    fixed = {id(part): part.nbytes for part in _tensors(cache) if id(part) not in counted}
    return Footprint(
        sum(fixed.values()), sum(tensor.nbytes // tensor.shape[-2] for tensor in growing)
    )


def merged(caches: Sequence[Any], longest: int) -> Any:
    """Stacks shareable caches as rows of one cache, padded on the left to the longest."""
    stacked: Any = DynamicCache()
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        keys = torch.cat([_stretched(layer.keys, longest) for layer in layers])
        values = torch.cat([_stretched(layer.values, longest) for layer in layers])
        stacked.layers.append(_layer(keys, values))
    return stacked


def kept(cache: Any, rows: Sequence[int], lengths: Sequence[int], ends: Sequence[int]) -> Any:
    """Returns some rows of a shareable cache, padded on the left to the longest of them.

    Args:
        lengths: tokens of each of these rows.
        ends: position after the last token of each row. Anything behind it is dropped.
    """
    selected: Any = DynamicCache()
    for layer in cache.layers:
        parts = (_kept(part, rows, lengths, ends) for part in (layer.keys, layer.values))
        selected.layers.append(_layer(*parts))
    return selected


def cut(cache: Any, count: int) -> None:
    """Drops the last `count` tokens of a shareable cache."""
    for layer in cache.layers if count else ():
        layer.keys, layer.values = layer.keys[:, :, :-count], layer.values[:, :, :-count]


def _kept(
    part: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ends: Sequence[int]
) -> torch.Tensor:
    longest, end = max(lengths), ends[0]
    if all(row_end == end for row_end in ends):
        return part[rows, :, end - longest : end]
    each = zip(rows, lengths, ends, strict=True)
    return torch.cat(
        [_stretched(part[row : row + 1, :, end - size : end], longest) for row, size, end in each]
    )


def _stretched(part: torch.Tensor, longest: int) -> torch.Tensor:
    return torch.nn.functional.pad(part, (0, 0, longest - part.shape[2], 0))


def _layer(keys: torch.Tensor, values: torch.Tensor) -> Any:
    layer: Any = DynamicLayer()
    layer.keys, layer.values = keys, values
    layer.dtype, layer.device = keys.dtype, keys.device
    layer.is_initialized = True
    return layer


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """Yields all tensors of a cache of any class."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(cast("dict[Any, Any]", value).values()))
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _tensors(item)
    elif hasattr(value, "__dict__") and not isinstance(value, PreTrainedConfig):
        yield from _tensors(vars(value))
