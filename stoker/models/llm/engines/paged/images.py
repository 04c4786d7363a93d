"""Prompts with images, which a model computes with its own attention.

Attention within an image may go in both directions, and the model's code defines the positions. So
such a prompt is one pass of its own. Its keys and values are then stored in the blocks, and later
tokens are computed like those of other sequences.
"""

import inspect
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from stoker.models.llm.engines.paged import attention
from stoker.models.llm.engines.paged.layout import Layout
from stoker.models.llm.engines.paged.memory import BlockMemory
from stoker.models.llm.engines.positions import PositionAxes
from stoker.models.llm.interface import Features


class PagedImages:
    """Computes a model's prompts with images, and keeps track of sequences with images."""

    def __init__(self, model: Any, axes: PositionAxes, memory: BlockMemory, own: str) -> None:
        """
        Args:
            own: the model's own attention implementation.
        """
        self._model = model
        self._axes = axes
        self._memory = memory
        self._own = own
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        self._waiting: dict[int, Features] = {}
        """Maps a sequence to the features of its images until they are computed."""
        self._shifts: dict[int, int] = {}
        """Maps a sequence with images to the shift of its later positions."""

    def __contains__(self, identifier: int) -> bool:
        return identifier in self._shifts

    def add(self, identifier: int, features: Features) -> None:
        self._waiting[identifier] = features
        self._shifts[identifier] = 0

    def remove(self, identifier: int) -> None:
        self._waiting.pop(identifier, None)
        self._shifts.pop(identifier, None)

    def waits(self, identifier: int) -> bool:
        """Returns True if a sequence's images must be computed next."""
        return identifier in self._waiting

    def shift(self, identifier: int) -> int:
        """Returns the shift of a sequence's positions after its images. See `PositionAxes`."""
        return self._shifts.get(identifier, 0)

    def compute(self, identifier: int, layout: Layout) -> torch.Tensor:
        """Computes a whole prompt, alone in its row. Returns the logits at `layout.wanted`, float32
        (rows, vocabulary).
        """
        model = self._model
        features = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in self._waiting.pop(identifier).items()
            if name in self._accepted
        }
        positions = self._axes.of_prompt(layout.ids, features)
        # Layers with windows would keep only the last tokens in a cache for this configuration.
        cache: Any = DynamicCache()
        attention.implement(model, self._own)
        try:
            output = model(
                input_ids=layout.ids,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=layout.wanted,
                **features,
            )
        finally:
            attention.implement(model, attention.NAME)
        for number, layer in enumerate(cache.layers):
            key, value = (part[0].transpose(0, 1) for part in (layer.keys, layer.values))
            self._memory.write(number, layout.slots, key, value)
        self._shifts[identifier] = self._axes.shift(positions)
        return output.logits[0].float()
