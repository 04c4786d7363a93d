"""How many tokens a model has positions for.

The configuration names the rows of its table of positions. Some architectures leave the first rows
out: RoBERTa and its kin count positions from the padding index on, BART and others from 2 on. The
loaded model says so by itself, so that no list of architectures is needed.
"""

from collections.abc import Iterator
from typing import Any

_CONFIGURED = ("max_position_embeddings", "max_encoder_position_embeddings")
_TABLE, _OFFSET_TABLE = "position_embeddings", "embed_positions"
"""Names of the modules that hold a position's vector in each row."""
_OTHER_PARTS = ("decoder", "vision", "visual", "image", "audio")
"""Words in the names of a model's parts that read no text."""


def most_positions(model: Any, config: Any = None) -> int | None:
    """The most tokens that a model of transformers takes; None: it sets no limit.

    Args:
        model: a module of torch with its configuration. Of a model with a decoder, only the encoder
            counts, and only the part that reads texts.
        config: that of this part; None: the model's own.
    """
    config = config or model.config
    named = (getattr(config, name, None) for name in _CONFIGURED)
    # Some write -1 if there is no limit.
    limits = [value for value in named if isinstance(value, int) and value > 0]
    limits += _usable_rows(model)
    return min(limits, default=None)


def _usable_rows(model: Any) -> Iterator[int]:
    modules = getattr(model, "named_modules", None)
    for name, module in modules() if modules else ():
        if any(part in name for part in _OTHER_PARTS):
            continue
        if (rows := _rows(module, _TABLE)) is not None:
            # What a module of a table calls its padding index is where its positions begin.
            padding = getattr(module, "padding_idx", None)
            yield rows - (padding + 1 if isinstance(padding, int) else 0)
        if (rows := _rows(module, _OFFSET_TABLE)) is not None:
            offset = getattr(getattr(module, _OFFSET_TABLE), "offset", 0)
            yield rows - (offset if isinstance(offset, int) else 0)


def _rows(module: Any, name: str) -> int | None:
    weight = getattr(getattr(module, name, None), "weight", None)
    return None if weight is None else weight.shape[0]
