"""What a language model of transformers keeps of a sequence: keys and values, or a state.

Most keep the keys and values of all positions, so that sequences can be computed together. What is
of another kind (windows, states, sparse attention's indices) belongs to one sequence and stays as
the model made it.
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
"""What a layer keeps of every token, (rows, [heads,] tokens, size); all else has one size."""


@dataclass(frozen=True)
class Footprint:
    """What sequences take, bytes."""

    a_sequence: int
    """However long it is."""
    a_token: int

    def of(self, sequences: int, tokens: int) -> int:
        """All together, of so many tokens together."""
        return sequences * self.a_sequence + tokens * self.a_token


class Caches:
    """Makes the caches of a model's sequences."""

    def __init__(self, model: Any) -> None:
        accepted = inspect.signature(model.forward).parameters
        self._config = model.config
        self.name = next(name for name in _NAMES if name in accepted)
        """What the model calls it, as an argument and among its outputs."""
        self._given = self.name in _NAMES[:2] and model._supports_default_dynamic_cache()

    def empty(self) -> Any:
        """That of a sequence of which nothing is computed; None: the first pass makes it."""
        return DynamicCache(config=self._config) if self._given else None


def shareable(cache: Any) -> bool:
    """Whether it is keys and values of all positions, and nothing else."""
    return type(cache) is DynamicCache and all(
        type(one) is DynamicLayer and one.is_initialized for one in cache.layers
    )


def footprint(cache: Any) -> Footprint:
    """What one sequence's cache comes to, however long it gets.

    A window is taken for as long as the sequence: too much, and never too little.
    """
    growing = [
        part
        for layer in getattr(cache, "layers", ())
        for name in _GROWING
        if torch.is_tensor(part := getattr(layer, name, None)) and part.numel()
    ]
    counted = {id(part) for part in growing}
    fixed = {id(part): part.nbytes for part in _tensors(cache) if id(part) not in counted}
    return Footprint(sum(fixed.values()), sum(one.nbytes // one.shape[-2] for one in growing))


def merged(caches: Sequence[Any], longest: int) -> Any:
    """Shareable caches below one another, padded on the left to the longest."""
    found: Any = DynamicCache()
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        keys = torch.cat([_stretched(layer.keys, longest) for layer in layers])
        values = torch.cat([_stretched(layer.values, longest) for layer in layers])
        found.layers.append(_layer(keys, values))
    return found


def kept(cache: Any, rows: Sequence[int], lengths: Sequence[int], ends: Sequence[int]) -> Any:
    """Some rows of a shareable cache, padded on the left to the longest of them.

    Args:
        lengths: of each of these rows, tokens.
        ends: of each, the place behind its last token; what comes after it is dropped.
    """
    found: Any = DynamicCache()
    for layer in cache.layers:
        parts = (_kept(part, rows, lengths, ends) for part in (layer.keys, layer.values))
        found.layers.append(_layer(*parts))
    return found


def cut(cache: Any, count: int) -> None:
    """Drop the last tokens of a shareable cache."""
    for layer in cache.layers if count else ():
        layer.keys, layer.values = layer.keys[:, :, :-count], layer.values[:, :, :-count]


def _kept(
    part: torch.Tensor, rows: Sequence[int], lengths: Sequence[int], ends: Sequence[int]
) -> torch.Tensor:
    longest, end = max(lengths), ends[0]
    if all(one == end for one in ends):
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
    """All tensors of a cache of whatever class."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(cast("dict[Any, Any]", value).values()))
    elif isinstance(value, list | tuple):
        for one in cast("Sequence[Any]", value):
            yield from _tensors(one)
    elif hasattr(value, "__dict__") and not isinstance(value, PreTrainedConfig):
        yield from _tensors(vars(value))
