"""Continues in float32 after an answer with NaN, if `auto` had chosen half precision."""

import logging
from collections.abc import Callable

import torch

from stoker.models.engines.precision import name_of
from stoker.models.engines.torch import TorchEngine
from stoker.wire.protocol import ChosenPrecision

log = logging.getLogger(__name__)


class PrecisionFallback:
    """Switches an engine to float32 between two batches. Requested by any thread."""

    def __init__(self, engine: TorchEngine, changed: Callable[[ChosenPrecision], None]) -> None:
        """
        Args:
            changed: receives the new precision once the engine computes in it.
        """
        self._engine = engine
        self._changed = changed
        self.is_requested = False
        self.has_switched = False

    @property
    def is_possible(self) -> bool:
        """True if a new computation in float32 may give numbers."""
        engine = self._engine
        is_half = engine.dtype in (torch.float16, torch.bfloat16)
        # A converted model computes apart from torch, and adapters belong to the loaded weights.
        return engine.is_automatic and is_half and engine.name == "torch" and not engine.adapters

    def run(self) -> None:
        """Switches the engine. If memory is too short, it continues in half precision. Runs on the
        engine's thread.
        """
        self.is_requested = False
        if not self.is_possible:
            return
        half = self._engine.dtype
        try:
            self._engine.switch(torch.float32)
        except Exception:
            log.exception("model could not be loaded in float32; continuing in %s", half)
            self._engine.switch(half)
            return
        self.has_switched = True
        self._engine.precision = ChosenPrecision(
            "float32",
            f"'auto' computes in float32: an answer in {name_of(half)} contained NaN or infinity. "
            "'dtype' fixes the precision.",
        )
        self._changed(self._engine.precision)
