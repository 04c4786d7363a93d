"""Image segmentation: a mask for each thing or region of an image."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from stoker.replica.images import mask_png
from stoker.replica.pipelines import ImagePipelineStages
from stoker.replica.stages import InputError, Sample
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import ImageInputs

SUBTASKS = ("panoptic", "instance", "semantic")
"""In the order in which the pipeline looks for one."""

_THRESHOLDS = ("threshold", "mask_threshold", "overlap_mask_area_threshold")

Fraction = Annotated[float, Field(ge=0, le=1)]


class Segments(TypedDict):
    """One entry a segment in each list."""

    masks: list[str]
    """PNG of 8 bits, base64: 255 inside, 0 outside, of the image's size."""
    scores: list[float]
    """1 where a semantic model gives none."""
    labels: list[str]


class ImageSegmentationRequest(MediaRequest):
    inputs: ImageInputs
    subtask: Literal["panoptic", "instance", "semantic"] | None = Field(
        default=None, description="Default: the first of these three that the model can do."
    )
    threshold: Fraction | None = Field(
        default=None, description="Least score of a segment; default 0.9. Not for semantic."
    )
    mask_threshold: Fraction | None = Field(
        default=None,
        description="Least probability of a pixel to count for a mask; default 0.5. "
        "Not for semantic.",
    )
    overlap_mask_area_threshold: Fraction | None = Field(
        default=None,
        description="A segment of whose mask no more than this share is left uncovered by others "
        "is dropped; default 0.5. Not for semantic.",
    )


class ImageSegmentationStages(ImagePipelineStages):
    pipeline = "ImageSegmentationPipeline"
    auto_class = (
        "AutoModelForUniversalSegmentation",
        "AutoModelForInstanceSegmentation",
        "AutoModelForSemanticSegmentation",
    )

    def attach(self, model: Any) -> None:
        super().attach(model)
        processor = self._parts["image_processor"]
        self._subtasks = [
            name for name in SUBTASKS if hasattr(processor, f"post_process_{name}_segmentation")
        ]

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        subtask = self._subtask(parameters)
        given = [name for name in _THRESHOLDS if name in parameters]
        if subtask == "semantic" and given:
            raise InputError(
                f"'{given[0]}' is not for semantic segmentation, which has no scores: omit it.",
                field=given[0],
                of_item=False,
            )
        return super().preprocess(item, parameters)

    def _subtask(self, parameters: Mapping[str, Any]) -> str:
        wanted: str = parameters.get("subtask") or self._subtasks[0]
        if wanted not in self._subtasks:
            raise InputError(
                f"This model cannot do '{wanted}'; it can do {', '.join(self._subtasks)}.",
                field="subtask",
                of_item=False,
            )
        return wanted

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        # The pipeline object's own default passes over what comes after `panoptic` and `instance`.
        return {**parameters, "subtask": self._subtask(parameters)}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Segments:
        import numpy

        found = super().postprocess(outputs, parameters)
        return Segments(
            masks=[mask_png(numpy.asarray(segment["mask"])) for segment in found],
            scores=[1.0 if segment["score"] is None else segment["score"] for segment in found],
            labels=[segment["label"] for segment in found],
        )


TASK = Task(
    pipeline="image-segmentation",
    path="/v1/images/segmentation",
    summary="Segment images",
    request=ImageSegmentationRequest,
    media={"inputs": "image"},
    result=Segments,
    architectures=(
        "*ForSemanticSegmentation",
        "DetrForSegmentation",
        "MaskFormerForInstanceSegmentation",
        "Mask2FormerForUniversalSegmentation",
    ),
    families=("detr", "mask2former", "maskformer", "segformer"),
    example={"inputs": "https://images.example/street.jpg", "subtask": "panoptic"},
    example_result={"masks": ["iVBORw0KGgo…"], "scores": [0.99], "labels": ["road"]},
    stages=ImageSegmentationStages,
)
