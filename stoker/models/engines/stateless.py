"""Has a model compute each input as if it were its first one.

A few architectures change themselves as they run: an answer depends on what was asked before.
"""

from typing import Any

_BIG_BIRDS = ("BigBirdModel", "BigBirdPegasusEncoder")
"""The modules that choose the kind of attention by the length of their input."""


def make_stateless(model: Any) -> None:
    """Undo, before each pass, what an earlier one may have left in a model of transformers."""
    for module in model.modules():
        if type(module).__name__ in _BIG_BIRDS and shortest_sparse(module.config):
            module.register_forward_pre_hook(_BlockSparse(module.config), with_kwargs=True)


def shortest_sparse(config: Any) -> int:
    """Tokens from which on BigBird's attention is block-sparse; shorter inputs get full attention.

    As in `BigBirdModel.forward`. Of other models: 0.
    """
    if getattr(config, "attention_type", None) != "block_sparse":
        return 0
    return (5 + 2 * config.num_random_blocks) * config.block_size + 1


class _BlockSparse:
    """BigBird goes over to full attention for a short input, and never comes back."""

    def __init__(self, config: Any) -> None:
        self._from = shortest_sparse(config)

    def __call__(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        given = [options.get("input_ids"), options.get("inputs_embeds"), *args[:1]]
        tokens = next((one for one in given if one is not None), None)
        if tokens is not None and tokens.shape[1] >= self._from:
            # Only where it is not there already: it makes new modules, with the same weights.
            module.set_attention_type("block_sparse")
