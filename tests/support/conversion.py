"""Converts models to OpenVINO in the test process."""

from pathlib import Path

import msgspec

from stoker.base.media_limits import MediaLimits
from stoker.models.engines.openvino import ConversionVerdict
from stoker.replica import conversion, trial
from stoker.wire.conversions import Conversion, ConversionTrial, TrialVerdict
from stoker.wire.protocol import Cell, Execution, Precision

NOWHERE = Cell("", None, "")
"""Cell of work that stays in this process."""


def conversion_of(model: Path, pipeline: str) -> Execution:
    """Converts a model into a folder next to it and asserts that both are equal. Returns the
    execution.
    """
    folder = model.with_name(f"{model.name}-openvino")
    conversion.convert(
        Conversion(
            id="converted",
            pipeline=pipeline,
            model_dir=str(model),
            folder=str(folder),
            log_path="",
            threads=1,
            limits=MediaLimits(),
            cell=NOWHERE,
        )
    )
    verdict = ConversionVerdict.read(folder)
    assert verdict.forms, verdict.reason
    tried = tried_out(model, folder, pipeline)
    assert tried.passed, tried.reason
    return execution_of(folder)


def execution_of(folder: Path, precision: Precision = "f32") -> Execution:
    return Execution(str(folder), precision, str(folder / "compiled"))


def tried_out(
    model: Path, folder: Path, pipeline: str, precision: Precision = "f32"
) -> TrialVerdict:
    """Runs a trial in this process and returns its verdict."""
    path = folder / f"trial-{precision}.json"
    trial.try_out(
        ConversionTrial(
            id="tried",
            pipeline=pipeline,
            model_dir=str(model),
            execution=execution_of(folder, precision),
            verdict_path=str(path),
            log_path="",
            threads=1,
            limits=MediaLimits(),
            cell=NOWHERE,
        )
    )
    return msgspec.json.decode(path.read_bytes(), type=TrialVerdict)
