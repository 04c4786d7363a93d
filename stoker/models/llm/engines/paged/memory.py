"""Memory for keys and values, in blocks of tokens that are allocated in advance."""

from collections.abc import Sequence

import numpy as np
import torch

from stoker.models.llm.engines import pages
from stoker.models.llm.engines.paged.attention import AttentionLayer


class BlockMemory:
    """Keys and values of all layers. Sequences hold blocks of it by number.

    One more block than the cache has is allocated. Its first token receives the keys and values of
    padding, and its second token stays zero.
    """

    def __init__(
        self, layers: Sequence[AttentionLayer], blocks: int, block_tokens: int, device: torch.device
    ) -> None:
        self.block_tokens = block_tokens
        self.spare_block = blocks
        self.spare_slot = blocks * block_tokens
        self.zero_slot = self.spare_slot + 1
        shape = (blocks + 1, block_tokens)
        self.keys: list[torch.Tensor] = []
        """Maps a layer to its keys: (blocks, tokens of a block, heads, size)."""
        self.values: list[torch.Tensor] = []
        for layer in layers:
            if layer.source is None:
                sizes = (layer.key_size, layer.value_size)
                key, value = (
                    _zeros((*shape, layer.key_heads, size), layer.dtype, device) for size in sizes
                )
            else:
                key, value = self.keys[layer.source], self.values[layer.source]
            self.keys.append(key)
            self.values.append(value)
        self._has_own = [layer.source is None for layer in layers]
        self._flat_keys = [part.flatten(0, 1) for part in self.keys]
        self._flat_values = [part.flatten(0, 1) for part in self.values]

    def write(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Stores the keys and values of tokens, each of shape (tokens, heads, size), at `slots`."""
        if not self._has_own[layer]:
            return
        self._flat_keys[layer].index_copy_(0, slots, key)
        self._flat_values[layer].index_copy_(0, slots, value)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys and values at `slots` (sequences, width): each of shape (sequences,
        width, heads, size).
        """
        flat = slots.flatten()
        keys = self._flat_keys[layer].index_select(0, flat)
        values = self._flat_values[layer].index_select(0, flat)
        return keys.view(*slots.shape, *keys.shape[1:]), values.view(
            *slots.shape, *values.shape[1:]
        )


def block_bytes(layers: Sequence[AttentionLayer], block_tokens: int) -> int:
    """Returns the bytes of one block of all layers."""
    return sum(layer.token_bytes for layer in layers) * block_tokens


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = int(np.prod(shape)) * dtype.itemsize
    library = torch.from_numpy  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return library(pages.zeroed(size)).view(dtype).view(*shape)
