"""Adapters that vLLM itself loads: looked at here, before it is told of one.

vLLM takes one scale for all matrices of an adapter, from `r` and `lora_alpha`, and ends where it
cannot load one in a step.
"""

import math
from pathlib import Path

from stoker.models.adapters.applying import Adapter, Adapters, UnfitError
from stoker.models.adapters.lora import Lora
from stoker.models.llm.checkpoint import load_skeleton

MAX_RANK = 64
"""vLLM keeps room for so much in each layer, for each adapter of a batch."""
_NOT_THERE = frozenset({"embed_out", "embed_tokens", "lm_head"})


class VllmAdapters(Adapters):
    """Those that are named to vLLM; nothing of them is kept here."""

    def __init__(self, base: Path, folder: Path) -> None:
        super().__init__(load_skeleton(base), folder, 0)

    def _check(self, settings: Lora) -> None:
        if settings.saved:
            raise UnfitError("vLLM takes no layers that an adapter keeps whole (modules_to_save).")
        if settings.rank > MAX_RANK:
            raise UnfitError(f"On vLLM it may have a rank of {MAX_RANK}; it has {settings.rank}.")
        first, *others = settings.modules.values()
        if any(
            one.rank != first.rank or not math.isclose(one.scale, first.scale) for one in others
        ):
            raise UnfitError("vLLM takes one rank and one scale for all modules of an adapter.")
        if found := _NOT_THERE.intersection(settings.kinds):
            raise UnfitError(f"vLLM takes no adapted {sorted(found)[0]}.")

    def _kept_of(self, one: Adapter) -> Adapter:
        return Adapter(one.name, {}, {})
