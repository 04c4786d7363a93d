"""Chooses half precision if a model's answers to example inputs agree with those in float32.

The comparison loads the weights two or three times, but never holds two copies. Its result is
stored for later replicas.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stoker.models.engines.agreement import Agreement
from stoker.models.engines.interface import Progress
from stoker.models.engines.precision import half_precisions, name_of, stored_dtype
from stoker.models.engines.probing import COMPARED_BY, examples
from stoker.models.engines.sharing import ModelUnfitError
from stoker.models.engines.shortage import is_out_of_memory
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.wire.protocol import ChosenPrecision

log = logging.getLogger(__name__)

LEAST_COSINE = 0.9995
"""Minimum cosine similarity of an answer to the answer in float32. All top labels must be equal
too.
"""
MOST_BYTES = 4 << 30
"""Maximum size in bytes, as float32, of weights that are compared. Larger models keep the half
precision in which they are stored.
"""

Answer = Mapping[str, torch.Tensor]


def choose(engine: TorchEngine, progress: Progress) -> None:
    """Chooses the precision of a loaded model on a GPU, if its `dtype` is `auto` and no earlier
    replica has chosen it. The model is then loaded in that precision.
    """
    if engine.is_automatic and engine.precision is None and engine.device.type == "cuda":
        progress(0.5, "comparing precisions")
        engine.precision = compared(engine, half_precisions(stored_dtype(engine.folder)))


def compared(engine: TorchEngine, candidates: Sequence[torch.dtype]) -> ChosenPrecision | None:
    """Switches to the first candidate whose answers agree with those in float32, or to float32.

    Returns None, and keeps the precision, if the comparison fails.
    """
    loaded = engine.dtype
    in_single = 4 * sum(parameter.numel() for parameter in engine.model.parameters())
    if loaded is not torch.float32 and in_single > MOST_BYTES:
        return _choice(loaded, "the weights are stored so, and too large to compare with float32")
    comparison = _Comparison(engine)
    try:
        return comparison.choose(candidates)
    except Exception:
        log.exception("precisions could not be compared")
    comparison.load(loaded)
    return None


class _Comparison:
    """Answers of one model in several precisions."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        engine.enter_thread()
        self._samples = examples(engine.stages, COMPARED_BY)
        self._answers: dict[torch.dtype, Sequence[Answer] | str] = {}
        """Maps a dtype to its answers, or to the reason that it has none."""

    def choose(self, candidates: Sequence[torch.dtype]) -> ChosenPrecision:
        failed: list[str] = []
        if self._engine.dtype in candidates:
            # Avoids loading the weights again.
            self._answers_in(self._engine.dtype)
        for dtype in candidates if self._samples else ():
            agrees, words = self._verdict(dtype)
            log.info("%s: %s", name_of(dtype), words)
            if agrees:
                self.load(dtype)
                return _choice(
                    dtype, f"{len(self._samples)} examples compared with float32: {words}"
                )
            failed.append(f"in {name_of(dtype)}, {words}")
        self.load(torch.float32)
        reasons = "; ".join(failed) or "the model has no examples to compare"
        return _choice(
            torch.float32,
            f"{reasons}. Half precision must keep all top labels, and a "
            f"cosine of at least {LEAST_COSINE}",
        )

    def load(self, dtype: torch.dtype) -> None:
        if self._engine.dtype is not dtype or self._engine.model.device.type == "meta":
            self._engine.switch(dtype)

    def _verdict(self, dtype: torch.dtype) -> tuple[bool, str]:
        """Returns whether a precision agrees with float32, and the measured difference in words."""
        reference, answers = self._answers_in(torch.float32), self._answers_in(dtype)
        if isinstance(reference, str):
            raise ModelUnfitError(reference)
        if isinstance(answers, str):
            return False, answers
        agreement = Agreement(clear=0)
        for ours, theirs in zip(answers, reference, strict=True):
            if ours.keys() != theirs.keys():
                return False, "the model has other outputs"
            agreement.add(ours, theirs)
        if not math.isfinite(agreement.difference):
            return False, "the model returns NaN, infinity or other shapes"
        words = f"lowest cosine {math.floor(agreement.cosine * 1e6) / 1e6:.6f}"
        if agreement.clear:
            words += f", {agreement.kept} of {agreement.clear} top labels equal"
        return agreement.cosine >= LEAST_COSINE and agreement.labels == 1, words

    def _answers_in(self, dtype: torch.dtype) -> Sequence[Answer] | str:
        if dtype not in self._answers:
            self.load(dtype)
            try:
                self._answers[dtype] = [
                    _outputs(sample, self._engine.forward([sample])[0]) for sample in self._samples
                ]
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                log.info("the model fails in %s", dtype, exc_info=True)
                self._answers[dtype] = f"the model fails with {type(error).__name__}"
        return self._answers[dtype]


def _outputs(sample: Sample, answer: Mapping[str, Any]) -> Answer:
    """Returns the tensors of an answer that the model computed."""
    inputs = {*sample.features, *sample.extras}
    return {
        name: value
        for name, value in answer.items()
        if name not in inputs and torch.is_tensor(value) and value.dim()
    }


def _choice(dtype: torch.dtype, why: str) -> ChosenPrecision:
    name: Any = name_of(dtype)
    return ChosenPrecision(name, f"'auto' computes in {name}: {why}. 'dtype' fixes the precision.")
