"""What a model is probed with when it is converted and tried, and how two answers are compared."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.stateful import NotExportableError

EXPORTED_TOKENS, PROBED_TOKENS = 24, (8, 24, 72)
LONG_TOKENS = 270
"""Of a probe that is compared once: what depends on length may show late."""


CALIBRATED_BY, RETRIED_BY = range(1, 25), range(25, 33)
"""Which of a model's examples it is rounded by, and which others it is tried with then."""
_EXAMPLE_TOKENS = (12, 24, 48, 96, 192)


def examples(stages: Stages, numbers: Iterable[int]) -> list[Sample]:
    """Inputs that look like real ones, of several lengths."""
    lengths = itertools.cycle(_EXAMPLE_TOKENS)
    found = (stages.probe(length, number) for number, length in zip(numbers, lengths, strict=False))
    return [one for one in found if one is not None]


def batch_of(engine: TorchEngine, sample: Sample, size: int) -> dict[str, torch.Tensor]:
    """So many of one sample, padded as they would be when they are served."""
    stages = engine.stages
    return engine.batch([sample] * size, stages.padded_length(stages.length(sample)))


def tensors(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A model's outputs. Raises `NotExportableError` where not all of them are tensors."""
    found = {name: value for name, value in outputs.items() if value is not None}
    if not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise NotExportableError("Its outputs are more than tensors.")
    return found


def difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """The largest, over all outputs, as a share of the largest value there.

    Whole numbers, such as tokens, have to be equal; so do shapes. What is no number in one has to
    be none in the other.
    """
    worst = 0.0
    for name, value in theirs.items():
        if ours[name].shape != value.shape:
            return math.inf
        if not value.is_floating_point():
            worst = worst if torch.equal(ours[name], value) else math.inf
            continue
        if not value.numel():
            continue
        # A NaN would pass every comparison below.
        largest = float((ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-6))
        worst = max(worst, math.inf if math.isnan(largest) else largest)
    return worst
