"""Models converted for OpenVINO in this process."""

from pathlib import Path

from stoker.media.limits import MediaLimits
from stoker.replica.engines import conversion
from stoker.replica.engines.openvino import Verdict
from stoker.replica.protocol import Conversion


def conversion_of(model: Path, pipeline: str) -> Path:
    """The folder that a model was converted into, next to its own; it was found equal."""
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
        )
    )
    verdict = Verdict.read(folder)
    assert verdict.forms, verdict.reason
    return folder
