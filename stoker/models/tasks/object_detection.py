"""Object detection: labelled boxes around what an image shows."""

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
    float, Field(ge=0, le=1, description="Boxes are kept whose score is higher.")
]


_DETECTION = "<OD>"
_MOST_TOKENS = 1024
"""An object takes about six; a decoder of fewer positions ends before."""


class Box(TypedDict):
    """Corners in pixels of the image, from its top left."""

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
    """Florence-2, which writes down what it finds, and gives no scores: each is 1."""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        most = min(_MOST_TOKENS, self._new_tokens_limit(1))
        return [self.sample(self.image(item), _DETECTION, {"max_new_tokens": most})]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Detection]:
        (output,) = outputs
        found = self.processor.post_process_generation(
            self.answer(output), task=_DETECTION, image_size=output["size"]
        )[_DETECTION]
        detections = [
            Detection(score=1.0, label=label, box=Box(xmin=left, ymin=top, xmax=right, ymax=bottom))
            for label, (left, top, right, bottom) in zip(
                found["labels"], found["bboxes"], strict=True
            )
        ]
        return [one for one in detections if one["score"] > parameters["threshold"]]


TASK = Task(
    pipeline="object-detection",
    path="/v1/detections/object",
    summary="Detect objects",
    request=ObjectDetectionRequest,
    media={"inputs": "image"},
    result=list[Detection],
    # By name: zero-shot detectors are called …ForObjectDetection as well.
    architectures=(
        "*DetrForObjectDetection",
        "*DETRForObjectDetection",
        "RTDetrV2ForObjectDetection",
        "DFineForObjectDetection",
        "TableTransformerForObjectDetection",
        "YolosForObjectDetection",
        # Less specific than that of captions, which it is pushed for if nothing is said.
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
