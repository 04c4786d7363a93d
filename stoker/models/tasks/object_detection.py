"""Object detection: labelled boxes around the objects of an image."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages.base import Sample, by_kind
from stoker.models.stages.florence import FlorenceStages
from stoker.models.stages.pipelines import ImagePipelineStages
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import ImageInputs

DetectionThreshold = Annotated[
    float, Field(ge=0, le=1, description="Boxes with a higher score are kept.")
]


_DETECTION = "<OD>"
_MOST_TOKENS = 1024
"""Maximum number of generated tokens. An object takes about six; a decoder with fewer positions
stops earlier.
"""


class Box(TypedDict):
    """Corners in pixels from the image's top left."""

    xmin: int
    ymin: int
    xmax: int
    ymax: int


class Detection(TypedDict):
    score: float
    label: str
    box: Box


class ObjectDetectionRequest(MediaRequest):
    inputs: ImageInputs
    threshold: DetectionThreshold = 0.5


class ObjectDetectionStages(ImagePipelineStages):
    pipeline = "ObjectDetectionPipeline"
    auto_class = "AutoModelForObjectDetection"


class FlorenceDetectionStages(FlorenceStages):
    """Florence-2, which writes its detections as text. It returns no scores, so each score is 1."""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        most = min(_MOST_TOKENS, self._new_tokens_limit(1))
        return [self.sample(self.image(item), _DETECTION, {"max_new_tokens": most})]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Detection]:
        (output,) = outputs
        objects = self.processor.post_process_generation(
            self.answer(output), task=_DETECTION, image_size=output["size"]
        )[_DETECTION]
        detections = [
            Detection(score=1.0, label=label, box=Box(xmin=left, ymin=top, xmax=right, ymax=bottom))
            for label, (left, top, right, bottom) in zip(
                objects["labels"], objects["bboxes"], strict=True
            )
        ]
        return [
            detection for detection in detections if detection["score"] > parameters["threshold"]
        ]


TASK = Task(
    pipeline="object-detection",
    path="/v1/detections/object",
    summary="Detect objects",
    request=ObjectDetectionRequest,
    media={"inputs": "image"},
    result=list[Detection],
    # Listed by name: architectures of zero-shot detectors are called …ForObjectDetection as well.
    architectures=(
        "*DetrForObjectDetection",
        "*DETRForObjectDetection",
        "RTDetrV2ForObjectDetection",
        "DFineForObjectDetection",
        "TableTransformerForObjectDetection",
        "YolosForObjectDetection",
        # Less specific than the pattern of captions, the default for a pushed model without a task.
        "Florence2ForCond*",
    ),
    families=("detr", "florence2", "yolos"),
    example={"inputs": "https://images.example/street.jpg", "threshold": 0.7},
    example_result=[
        {
            "score": 0.98,
            "label": "bicycle",
            "box": {"xmin": 40, "ymin": 112, "xmax": 310, "ymax": 290},
        }
    ],
    stages=by_kind(ObjectDetectionStages, {"florence2": FlorenceDetectionStages}),
)
