"""Messages to the programs that convert a model for OpenVINO and try the result."""

from typing import Literal

import msgspec

from stoker.base.media_limits import MediaLimits
from stoker.wire.protocol import Cell, Execution

WeightFormat = Literal["int8", "int4"]
VERDICT = "verdict.json"
"""File in a conversion's folder that is written last. Without it, the conversion did not end."""


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """Conversion of a model for OpenVINO, in a separate process."""

    id: str
    pipeline: str
    model_dir: str
    folder: str
    """Destination of the converted model."""
    log_path: str
    threads: int
    limits: MediaLimits
    cell: Cell
    weight_format: WeightFormat | None = None
    """Format to which the weights are rounded."""
    in_int8: bool = False
    """If True, weights and activations are rounded to eight bits."""


class ConversionTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Trial of a converted model as it would serve, in a process that may crash."""

    id: str
    pipeline: str
    model_dir: str
    execution: Execution
    verdict_path: str
    """Destination of the `TrialVerdict`. A file that shows progress is next to it (see
    `sign_of`).
    """
    log_path: str
    threads: int
    limits: MediaLimits
    cell: Cell


class TrialVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial."""

    passed: bool
    reason: str = ""
    """Reason why the trial failed, as a sentence for the deployment's owner."""
    difference: float | None = None
    """Largest difference from the reference, as a share of the reference's largest output."""
    cosine: float | None = None
    """Smallest cosine between an answer and the reference's, for a rounded model."""
    labels: float | None = None
    """Share of clear labels that stayed on top, for a rounded model."""
    speedup: float | None = None
    """Speedup over torch: the geometric mean for one sample and for a batch. None means not
    measured.
    """


def sign_of(verdict_path: str) -> str:
    """Returns the path of the file that a trial touches after each step, once the model is
    compiled.
    """
    return f"{verdict_path}.running"
