"""Text to image. The same models also edit images, with or without a mask."""

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.models.diffusion.drawing.guided import DrawingStages
from stoker.models.diffusion.drawing.pipeline_families import TEXT_CLASSES
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import MediaPipeline
from stoker.wire.image_answer import Images
from stoker.wire.protocol import Work

GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"


def finish(work: Work, results: Sequence[Any]) -> bytes:
    """Returns the single input's `Images` as msgpack. The gateway writes files from it."""
    images: Images = results[0]
    return msgspec.msgpack.encode(images)


PIPELINE = MediaPipeline(
    name="text-to-image",
    paths=(GENERATIONS, EDITS),
    architectures=TEXT_CLASSES,
    families=("stable-diffusion", "stable-diffusion-xl", "stable-diffusion-3", "flux"),
    kind=ModelKind.DRAWING,
    stages=DrawingStages,
    input_field="prompt",
    finish=finish,
)
