"""Number of tokens that a model has positions for.

The configuration names the number of rows of the position table. Some architectures skip the first
rows: RoBERTa and similar models count positions from the padding index on, BART and others from 2
on. The loaded model contains these offsets, so no list of architectures is needed.
"""

from collections.abc import Iterator
from typing import Any

_CONFIGURED = ("max_position_embeddings", "max_encoder_position_embeddings")
_TABLE, _OFFSET_TABLE = "position_embeddings", "embed_positions"
"""Names of the modules that hold a position's vector in each row."""
_OTHER_PARTS = ("decoder", "vision", "visual", "image", "audio")
"""Words in the names of model parts that read no text."""


def most_positions(model: Any, config: Any = None) -> int | None:
    """Returns the maximum number of tokens that a transformers model accepts. None means no limit.

    Args:
        model: A torch module with its configuration. Only the part that reads texts counts, and
            only the encoder of a model with a decoder.
        config: Configuration of this part. None means the model's own.
    """
    config = config or model.config
    named = (getattr(config, name, None) for name in _CONFIGURED)
    # Some configurations use -1 for no limit.
    limits = [value for value in named if isinstance(value, int) and value > 0]
    limits += _usable_rows(model)
    return min(limits, default=None)


def _usable_rows(model: Any) -> Iterator[int]:
    modules = getattr(model, "named_modules", None)
    for name, module in modules() if modules else ():
        if any(part in name for part in _OTHER_PARTS):
            continue
        if (rows := _rows(module, _TABLE)) is not None:
            # Positions begin after the padding index of the module that holds the table.
            padding = getattr(module, "padding_idx", None)
            yield rows - (padding + 1 if isinstance(padding, int) else 0)
        if (rows := _rows(module, _OFFSET_TABLE)) is not None:
            offset = getattr(getattr(module, _OFFSET_TABLE), "offset", 0)
            yield rows - (offset if isinstance(offset, int) else 0)


def _rows(module: Any, name: str) -> int | None:
    weight = getattr(getattr(module, name, None), "weight", None)
    return None if weight is None else weight.shape[0]
