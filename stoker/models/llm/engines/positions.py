"""Where a language model's tokens stand: how many there may be, and what depends on their number.

LongRoPE (Phi-3's long models and their kin) turns keys by one set of factors in sequences of up to
`original_max_position_embeddings` tokens and by another in longer ones. transformers decides so for
each forward pass, by the furthest position in it. But a prompt is computed in several passes, and a
pass is of several sequences. So here the sequence decides: a long one is computed as such from its
first token on, and one that grows long is computed anew, as `generate` of transformers does it for
Phi-3.

Dynamic NTK scaling changes the factors with every token beyond `max_position_embeddings`, so that
no two passes would agree: sequences end there, where it has not begun to scale.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch

UNSTATED_LENGTH = 8192
"""Most tokens where a configuration names no number: a state has room for any."""
_LENGTHS = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "context_length",
    "model_max_length",
)


def longest(config: Any) -> int:
    """Most tokens of a sequence, prompt and answer, by a language model's configuration."""
    stated = (getattr(config, name, None) for name in _LENGTHS)
    return next((one for one in stated if isinstance(one, int) and one > 0), UNSTATED_LENGTH)


def long_borders(config: Any) -> list[int]:
    """The lengths beyond which a configuration's LongRoPE takes the long factors; none without."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    # Where kinds of layers differ, they have an entry each.
    each: list[Any] = [parameters, *parameters.values()]
    return sorted({border for one in each if (border := _border(one)) is not None})


def _border(parameters: Any) -> int | None:
    long = isinstance(parameters, dict) and ("rope_type", "longrope") in parameters.items()
    return cast("dict[str, int]", parameters)["original_max_position_embeddings"] if long else None


class Positions:
    """A model's rotary embeddings, which get the length of the sequence that a pass is of."""

    def __init__(self, model: Any) -> None:
        self._length = 0
        self._borders: list[int] = []
        for module in model.modules():
            if borders := _borders(module):
                self._borders = sorted({*self._borders, *borders})
                module.forward = self._of_sequence(module.forward)

    def kind(self, length: int) -> int:
        """Sequences share factors only where this is the same."""
        return sum(length > border for border in self._borders)

    @contextmanager
    def of(self, length: int) -> Generator[None]:
        """Within it, passes are of a sequence of so many tokens, of which they may be a part."""
        self._length = length
        try:
            yield
        finally:
            self._length = 0

    def _of_sequence(self, forward: Any) -> Any:
        def called(x: Any, position_ids: Any, *args: Any, **kwargs: Any) -> Any:
            if self.kind(self._length) == 0:
                return forward(x, position_ids, *args, **kwargs)
            # The module looks at the furthest position: the sequence's last one beside the pass's.
            last = position_ids.new_full((*position_ids.shape[:-1], 1), self._length - 1)
            found = forward(x, torch.cat([position_ids, last], dim=-1), *args, **kwargs)
            return tuple(part[..., :-1, :] for part in found)

        return called


def _borders(module: Any) -> list[int]:
    """Those of a rotary embedding; none for all other modules."""
    if getattr(module, "rope_type", None) is None or not hasattr(module, "config"):
        return []
    return long_borders(module.config)
