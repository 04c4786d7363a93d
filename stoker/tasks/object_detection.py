"""Object detection: labelled boxes around what an image shows."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from stoker.replica.pipelines import ImagePipelineStages
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import ImageInputs

DetectionThreshold = Annotated[
    float, Field(ge=0, le=1, description="Boxes are kept whose score is higher.")
]


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
    ),
    families=("detr", "yolos"),
    example={"inputs": "https://images.example/street.jpg", "threshold": 0.7},
    example_result=[
        {
            "score": 0.98,
            "label": "bicycle",
            "box": {"xmin": 40, "ymin": 112, "xmax": 310, "ymax": 290},
        }
    ],
    stages=ObjectDetectionStages,
)
