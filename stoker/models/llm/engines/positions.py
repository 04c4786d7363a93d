"""Positions of a language model's tokens: their maximum number, their axes, and embeddings that
depend on a sequence's length.

LongRoPE (in Phi-3's long models and related ones) has two sets of factors that rotate keys.
Sequences of up to `original_max_position_embeddings` tokens use one, longer ones the other.
transformers decides this per forward pass, by the furthest position in it. Here, a prompt is
computed in several passes, and a pass contains several sequences. So each sequence decides for
itself. A long sequence uses the long factors from its first token on. A sequence that becomes long
is computed again, as `generate` of transformers does for Phi-3.

Dynamic NTK scaling changes the factors with every token beyond `max_position_embeddings`, so no two
passes would agree. Sequences therefore end at that length, before the scaling begins.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch

from stoker.models.llm.model_types import LENGTH_FIELDS

UNSTATED_LENGTH = 8192
"""Maximum tokens if a configuration names no number. A state has room for any number."""


def longest(config: Any) -> int:
    """Returns the maximum tokens of a sequence, prompt and answer, from a language model's
    configuration.
    """
    stated = (getattr(config, name, None) for name in LENGTH_FIELDS)
    return next(
        (length for length in stated if isinstance(length, int) and length > 0), UNSTATED_LENGTH
    )


def long_borders(config: Any) -> list[int]:
    """Returns the lengths beyond which a configuration's LongRoPE uses the long factors. Empty
    without LongRoPE.
    """
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    # If kinds of layers differ, each kind has its own entry.
    each: list[Any] = [parameters, *parameters.values()]
    return sorted({border for entry in each if (border := _border(entry)) is not None})


def _border(parameters: Any) -> int | None:
    long = isinstance(parameters, dict) and ("rope_type", "longrope") in parameters.items()
    return cast("dict[str, int]", parameters)["original_max_position_embeddings"] if long else None


class PositionAxes:
    """Positions as `generate` of a model assigns them: on one axis or, in some vision models, on
    several.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        first = self.of_prompt(torch.zeros(1, 1, dtype=torch.long), {})
        self._count = int(first.shape[0]) if first.dim() > 2 else 0
        """0: positions have no dimension for axes."""

    def of_prompt(self, ids: torch.Tensor, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the positions of a prompt's tokens: ([axes,] rows, tokens)."""
        return self._model._prepare_position_ids_for_generation(ids, {"input_ids": ids, **features})

    def shift(self, positions: torch.Tensor) -> int:
        """Returns the difference between a later token's position and the number of tokens before
        it. An image may use fewer positions than it has tokens.

        Args:
            positions: those of the prompt's tokens.
        """
        # With several axes, the first one counts the tokens.
        placed = positions[1:] if self._count else positions
        return int(placed.max()) + 1 - positions.shape[-1]

    def of_text(self, places: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Returns the positions of text: ([axes,] rows, tokens).

        Args:
            places: number of tokens before each token, shape (rows, tokens).
            positions: `places` with the shift of each sequence.
        """
        if not self._count:
            return positions
        return torch.stack([places, *[positions] * (self._count - 1)])


class Positions:
    """Rotary embeddings of a model. They receive the length of the sequence that a pass belongs
    to.
    """

    def __init__(self, model: Any) -> None:
        self._length = 0
        self._borders: list[int] = []
        for module in model.modules():
            if borders := _borders(module):
                self._borders = sorted({*self._borders, *borders})
                module.forward = self._of_sequence(module.forward)

    def kind(self, length: int) -> int:
        """Returns the kind of a length. Sequences share factors only if their kinds are equal."""
        return sum(length > border for border in self._borders)

    @contextmanager
    def of(self, length: int) -> Generator[None]:
        """Sets the length of the sequence for passes within the context. A pass may compute only a
        part of it.
        """
        self._length = length
        try:
            yield
        finally:
            self._length = 0

    def _of_sequence(self, forward: Any) -> Any:
        def called(x: Any, position_ids: Any, *args: Any, **kwargs: Any) -> Any:
            if self.kind(self._length) == 0:
                return forward(x, position_ids, *args, **kwargs)
            # The module uses the furthest position, so the sequence's last position is appended to
            # those of the pass.
            last = position_ids.new_full((*position_ids.shape[:-1], 1), self._length - 1)
            embeddings = forward(x, torch.cat([position_ids, last], dim=-1), *args, **kwargs)
            return tuple(part[..., :-1, :] for part in embeddings)

        return called


def _borders(module: Any) -> list[int]:
    """Returns the borders of a rotary embedding. Empty for all other modules."""
    if getattr(module, "rope_type", None) is None or not hasattr(module, "config"):
        return []
    return long_borders(module.config)
