"""Continues in float32 after an answer with NaN, if `auto` had chosen half precision."""

import logging
from collections.abc import Callable

import torch

from stoker.models.engines.precision import HALF, name_of
from stoker.models.engines.torch import TorchEngine
from stoker.wire.protocol import ChosenPrecision

log = logging.getLogger(__name__)


class PrecisionFallback:
    """Switches an engine to float32 between two batches."""

    def __init__(self, engine: TorchEngine, changed: Callable[[ChosenPrecision], None]) -> None:
        """
        Args:
            changed: receives the precision that later replicas begin with.
        """
        self._engine = engine
        self._changed = changed
        self._is_over = False
        """True if later replicas start in float32, or if memory was too short for the switch."""
        self.is_requested = False
        self._has_switched = False

    def request(self) -> bool:
        """Requests the switch. Returns True if a new computation will be in float32.

        Called by the thread that reads the outputs. Samples that are queued afterwards are
        computed after the switch.
        """
        engine = self._engine
        if self.is_requested or self._has_switched:
            return True
        # A converted model does not run on torch.
        is_chosen = engine.is_automatic and engine.dtype in HALF and engine.name == "torch"
        if self._is_over or not is_chosen:
            return False
        if engine.adapters is not None:
            # Adapters belong to the loaded weights, so the precision changes only at the next load.
            self._announce(engine.dtype)
            return False
        self.is_requested = True
        return True

    def run(self) -> None:
        """Switches the engine if that was requested. If memory is too short, it continues in half
        precision. Runs on the engine's thread.
        """
        if not self.is_requested:
            return
        half = self._engine.dtype
        try:
            self._engine.switch(torch.float32)
        except Exception:
            log.exception("model could not be loaded in float32; continuing in %s", half)
            self._is_over = True
        if self._is_over:
            self._engine.switch(half)
        else:
            self._has_switched = True
            self._announce(half)
        self.is_requested = False

    def _announce(self, half: torch.dtype) -> None:
        self._is_over = True
        self._engine.precision = ChosenPrecision(
            "float32",
            f"'auto' computes in float32: an answer in {name_of(half)} contained NaN or infinity. "
            "'dtype' fixes the precision.",
        )
        self._changed(self._engine.precision)
