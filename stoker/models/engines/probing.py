"""Inputs that probe a model when it is converted and tried, and the comparison of two answers."""

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
"""Tokens of a probe that is compared once: effects of the length may show late."""


CALIBRATED_BY, RETRIED_BY, COMPARED_BY = range(1, 25), range(25, 33), range(33, 41)
"""Numbers of the examples that calibrate a quantized model, of other examples that test it, and of
examples that compare half with single precision.
"""
_EXAMPLE_TOKENS = (12, 24, 48, 96, 192)


def examples(stages: Stages, numbers: Iterable[int]) -> list[Sample]:
    """Returns realistic inputs of several lengths."""
    lengths = itertools.cycle(_EXAMPLE_TOKENS)
    samples = (
        stages.probe(length, number) for number, length in zip(numbers, lengths, strict=False)
    )
    return [sample for sample in samples if sample is not None]


def batch_of(engine: TorchEngine, sample: Sample, size: int) -> dict[str, torch.Tensor]:
    """Returns a batch of `size` copies of a sample, padded as for serving."""
    return engine.batch([sample] * size)


def tensors(outputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns a model's outputs without None. Raises `NotExportableError` if not all of them are
    tensors.
    """
    present = {name: value for name, value in outputs.items() if value is not None}
    if not all(isinstance(value, torch.Tensor) for value in present.values()):
        raise NotExportableError("The model has outputs that are not tensors.")
    return present


def difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """Returns the largest difference over all outputs, as a share of the output's largest value.

    Whole numbers, such as tokens, and shapes must be equal. A NaN in one answer must be a NaN in
    the other.
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
