"""Makes a model compute each input as if it were its first one.

A few architectures change their state as they run: an answer depends on earlier inputs.
"""

from typing import Any

_BIG_BIRDS = ("BigBirdModel", "BigBirdPegasusEncoder")
"""Modules that choose the kind of attention by the length of their input."""


def make_stateless(model: Any) -> None:
    """Makes a transformers model undo the changes of earlier passes before each pass."""
    for module in model.modules():
        if type(module).__name__ in _BIG_BIRDS and shortest_sparse(module.config):
            module.register_forward_pre_hook(_BlockSparse(module.config), with_kwargs=True)


def shortest_sparse(config: Any) -> int:
    """Returns the least number of tokens with block-sparse attention. Shorter inputs get full
    attention.

    Same as in `BigBirdModel.forward`. 0 for other models.
    """
    if getattr(config, "attention_type", None) != "block_sparse":
        return 0
    return (5 + 2 * config.num_random_blocks) * config.block_size + 1


class _BlockSparse:
    """Hook that returns BigBird to block-sparse attention. BigBird switches to full attention for a
    short input, and never back.
    """

    def __init__(self, config: Any) -> None:
        self._from = shortest_sparse(config)

    def __call__(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        candidates = [options.get("input_ids"), options.get("inputs_embeds"), *args[:1]]
        tokens = next((candidate for candidate in candidates if candidate is not None), None)
        if tokens is not None and tokens.shape[1] >= self._from:
            # Called only if needed: it creates new modules with the same weights.
            module.set_attention_type("block_sparse")
