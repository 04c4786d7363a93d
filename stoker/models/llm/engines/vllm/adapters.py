"""Adapters that vLLM itself loads. They are checked here before vLLM receives them.

vLLM uses one scale for all matrices of an adapter, from `r` and `lora_alpha`. It exits if it cannot
load an adapter during a step.
"""

import math
from pathlib import Path

from stoker.models.adapters.applying import Adapters, LoadedAdapter
from stoker.models.adapters.fitting import AdapterUnfitError
from stoker.models.adapters.lora import Lora
from stoker.models.llm.checkpoint import load_skeleton

MAX_RANK = 64
"""Maximum rank. vLLM reserves room for it in each layer, for each adapter of a batch."""
_NOT_THERE = frozenset({"embed_out", "embed_tokens", "lm_head"})


class VllmAdapters(Adapters):
    """Adapters that are only named to vLLM. No weights are kept here."""

    def __init__(self, base: Path, folder: Path) -> None:
        super().__init__(load_skeleton(base), folder, 0)

    def _check(self, settings: Lora) -> None:
        if settings.saved:
            raise AdapterUnfitError(
                "vLLM does not support adapters with whole layers (modules_to_save)."
            )
        if settings.rank > MAX_RANK:
            raise AdapterUnfitError(
                f"vLLM supports a rank of at most {MAX_RANK}; the adapter has {settings.rank}."
            )
        first, *rest = settings.modules.values()
        if any(
            module.rank != first.rank or not math.isclose(module.scale, first.scale)
            for module in rest
        ):
            raise AdapterUnfitError(
                "vLLM requires one rank and one scale for all modules of an adapter."
            )
        if unsupported := _NOT_THERE.intersection(settings.kinds):
            raise AdapterUnfitError(f"vLLM does not support an adapted {sorted(unsupported)[0]}.")

    def _kept_of(self, adapter: LoadedAdapter) -> LoadedAdapter:
        return LoadedAdapter(adapter.name, {}, {})
