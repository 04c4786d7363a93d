"""A converted model runs only inputs of the size with which it was exported."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.compare import equal
from tests.support.conversion import conversion_of
from tests.support.local import Local
from tests.support.media import image, image_media, sound
from tests.tasks.test_audio_classification import wav2vec2
from tests.tasks.test_object_detection import detr

SIZES = [(320, 240), (70, 50), (40, 90), (32, 32)]
"""Image sizes as (width, height) in pixels. The first are prepared like the exported example."""
SECONDS = [1.0, 0.5, 2.3]


def asked(local: Local, bodies: list[dict[str, Any]]) -> list[Any]:
    return [local.ask(body) for body in bodies]


@pytest.mark.parametrize(
    ("pipeline", "build", "bodies"),
    [
        (
            "object-detection",
            detr,
            [{"inputs": image_media(image(0, size)), "threshold": 0} for size in SIZES],
        ),
        (
            "audio-classification",
            wav2vec2,
            [
                {"inputs": {"array": sound(0, length).tolist(), "sampling_rate": 16_000}}
                for length in SECONDS
            ],
        ),
    ],
    ids=["images", "recordings"],
)
def test_answers_of_other_sizes(
    tmp_path: Path, pipeline: str, build: Any, bodies: list[dict[str, Any]]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    transformers.set_seed(0)
    build(folder)
    local = Local(pipeline, folder, in_openvino=True)
    before = asked(local, bodies)
    local.adopt(conversion_of(folder, pipeline))
    # The converted model is adopted between two batches.
    while local.engine != "openvino":
        local.ask(bodies[0])
    for answer, expected in zip(asked(local, bodies), before, strict=True):
        equal(answer, expected)
    local.close()
