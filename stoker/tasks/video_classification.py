"""Video classification: the labels of a clip."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from stoker.replica.pipelines import PipelineStages, VideoStages
from stoker.replica.stages import InputError, Sample
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import FunctionToApply, Label, TopK, VideoInputs

if TYPE_CHECKING:
    from stoker.media.video import Frame

_MAX_FRAMES = 512
_MAX_RATE = 1000
_ANY_LENGTH = frozenset({"timesformer"})
"""Families that interpolate their embedding of time."""


class VideoClassificationRequest(MediaRequest):
    inputs: VideoInputs
    top_k: TopK = 5
    num_frames: Annotated[
        int | None,
        Field(ge=1, le=_MAX_FRAMES, description="Frames looked at; default: the model's own."),
    ] = None
    frame_sampling_rate: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MAX_RATE,
            description="Take every n-th frame from the start of the clip, the last one again "
            "where it is shorter; default: frames spread over the whole clip.",
        ),
    ] = None
    function_to_apply: FunctionToApply | None = None


class VideoClassificationStages(VideoStages, PipelineStages):
    """Only the pipeline object's reading is used: its own preparation opens paths and URLs.

    The image processors of these models are used: transformers' video processors need torchvision.
    """

    pipeline = "VideoClassificationPipeline"
    auto_class = "AutoModelForVideoClassification"
    parts = {"image_processor": "AutoImageProcessor"}

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        number = parameters.get("num_frames", self.config.num_frames)
        if number != self.config.num_frames and self.config.model_type not in _ANY_LENGTH:
            raise InputError(
                f"This model takes {self.config.num_frames} frames, not {number}.",
                field="num_frames",
                of_item=False,
            )
        frames = self.frames(item, number, parameters.get("frame_sampling_rate"))
        return [self._sample(frames)]

    def _sample(self, frames: "list[Frame]") -> Sample:
        return self.sample(self._parts["image_processor"](frames, return_tensors="pt"))

    def probe(self, length: int) -> Sample:
        import numpy

        frame = numpy.full((240, 320, 3), 128, numpy.uint8)
        return self._sample([frame] * self.config.num_frames)


TASK = Task(
    pipeline="video-classification",
    path="/v1/classifications/video",
    summary="Classify videos",
    request=VideoClassificationRequest,
    media={"inputs": "video"},
    result=list[Label],
    architectures=(
        "VideoMAEForVideoClassification",
        "TimesformerForVideoClassification",
        "VivitForVideoClassification",
    ),
    families=("videomae", "timesformer", "vivit"),
    example={"inputs": "https://videos.example/match.mp4", "top_k": 2},
    example_result=[
        {"label": "playing tennis", "score": 0.93},
        {"label": "juggling", "score": 0.01},
    ],
    stages=VideoClassificationStages,
)
