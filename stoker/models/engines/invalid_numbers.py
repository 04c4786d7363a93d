"""Finds NaN and infinity in a model's outputs, before a task uses them.

Tasks choose classes, boxes and words by comparisons, which are false for NaN. The answer would look
valid: no boxes, an empty text, a black mask.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from stoker.models.stages.base import INVALID, Sample

Output = Mapping[str, Any]

_CANDIDATES = "enc_outputs_coord_logits"
"""Output of detectors with the boxes of all places. They give places at an image's border infinite
boxes, so that these are never chosen.
"""


def outputs_with_nan(sample: Sample, output: Output) -> list[str]:
    """Returns the names of a sample's outputs that contain a NaN, or that were chosen from one."""
    return [
        name
        for name, value in _floats(sample, output)
        if value.numel() and bool(value.isnan().any())
    ] + _invalid(output)


def is_invalid(sample: Sample, output: Output) -> bool:
    """Returns True if an output of the sample contains a NaN or a positive infinity.

    Models mask values with negative infinity.
    """
    return bool(_invalid(output)) or any(
        # The maximum of values that include NaN is NaN.
        value.numel() and not float(value.max()) < math.inf
        for _, value in _floats(sample, output)
    )


def _floats(sample: Sample, output: Output) -> list[tuple[str, torch.Tensor]]:
    return [
        (name, value)
        for name, value in output.items()
        if torch.is_tensor(value)
        and value.is_floating_point()
        and name != _CANDIDATES
        and name not in sample.features
        and name not in sample.extras
    ]


def _invalid(output: Output) -> list[str]:
    value = output.get(INVALID)
    return ["scores"] if value is not None and bool(value.any()) else []
