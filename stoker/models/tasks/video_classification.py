"""Video classification: the labels of a clip."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.pipelines import PipelineStages, VideoStages
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import FunctionToApply, Label, TopK, VideoInputs

if TYPE_CHECKING:
    from stoker.media.video import Frame

_MAX_FRAMES = 512
_MAX_RATE = 1000
_ANY_LENGTH = frozenset({"timesformer"})
"""Families that interpolate their time embedding."""
_VJEPA2_SIDE = 256
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PREPARATION = (
    "do_resize",
    "do_center_crop",
    "do_rescale",
    "do_normalize",
    "resample",
    "rescale_factor",
    "image_mean",
    "image_std",
)
"""Settings that video processors and image processors share."""


class VideoClassificationRequest(MediaRequest):
    inputs: VideoInputs
    top_k: TopK = 5
    num_frames: Annotated[
        int | None,
        Field(
            ge=1, le=_MAX_FRAMES, description="Number of frames to read. Default: the model's own."
        ),
    ] = None
    frame_sampling_rate: Annotated[
        int | None,
        Field(
            ge=1,
            le=_MAX_RATE,
            description=(
                "Use every n-th frame from the start of the clip. If the clip is too "
                "short, "
                "its last frame is repeated. Default: frames spread over the whole clip."
            ),
        ),
    ] = None
    function_to_apply: FunctionToApply | None = None


class VideoClassificationStages(VideoStages, PipelineStages):
    """Stages of video classification.

    Only the pipeline object's postprocessing is used: its preprocessing opens paths and URLs. The
    models' image processors are used, because transformers' video processors need torchvision.
    """

    pipeline = "VideoClassificationPipeline"
    auto_class = "AutoModelForVideoClassification"
    parts = {"image_processor": "AutoImageProcessor"}

    @property
    def _own_number(self) -> int:
        """Number of frames that the model was configured for."""
        return self.config.num_frames

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        number = parameters.get("num_frames", self._own_number)
        if number != self._own_number and self.config.model_type not in _ANY_LENGTH:
            raise InputError(
                f"This model takes {self._own_number} frames, not {number}.",
                field="num_frames",
                of_item=False,
            )
        frames = self.frames(item, number, parameters.get("frame_sampling_rate"))
        return [self._sample(frames)]

    def _sample(self, frames: "list[Frame]") -> Sample:
        return self.sample(self._parts["image_processor"](frames, return_tensors="pt"))

    def probe(self, length: int, number: int = 0) -> Sample:
        import numpy

        frame: Frame = numpy.asarray(specimens.picture(number))
        # The content moves to the right.
        return self._sample([numpy.roll(frame, 4 * at, 1) for at in range(self._own_number)])


class VJepa2Stages(VideoClassificationStages):
    """V-JEPA 2. A Pillow image processor replaces its video processor, which needs torchvision."""

    parts = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        path = folder / "video_preprocessor_config.json"
        settings: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        crop_size: Any = settings.get("crop_size", _VJEPA2_SIDE)
        side = int(
            cast("dict[str, int]", crop_size)["height"]
            if isinstance(crop_size, dict)
            else crop_size
        )
        options = {name: settings[name] for name in _PREPARATION if name in settings}
        self._parts["image_processor"] = library.VideoMAEImageProcessorPil(
            **{"image_mean": _IMAGENET_MEAN, "image_std": _IMAGENET_STD, **options},
            # V-JEPA 2's video processor resizes to this size and ignores its settings.
            size={"shortest_edge": int(side * 256 / 224)},
            crop_size={"height": side, "width": side},
        )

    @property
    def _own_number(self) -> int:
        return self.config.frames_per_clip

    def _sample(self, frames: "list[Frame]") -> Sample:
        prepared = self._parts["image_processor"](frames, return_tensors="pt")
        return Sample({"pixel_values_videos": prepared["pixel_values"]})


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
        "VJEPA2ForVideoClassification",
    ),
    families=("videomae", "timesformer", "vivit", "vjepa2"),
    example={"inputs": "https://videos.example/match.mp4", "top_k": 2},
    example_result=[
        {"label": "playing tennis", "score": 0.93},
        {"label": "juggling", "score": 0.01},
    ],
    stages=by_kind(VideoClassificationStages, {"vjepa2": VJepa2Stages}),
)
