"""Image segmentation: a mask for each thing or region of an image."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.pipelines import ImagePipelineStages, Outputs, load_image_processor
from stoker.models.stages.png import mask_png
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import ImageInputs

if TYPE_CHECKING:
    import torch

SUBTASKS = ("panoptic", "instance", "semantic")
"""Subtasks in the order in which the pipeline tries them."""

_QUERIES = ("class_queries_logits", "masks_queries_logits")
"""Outputs that are used of models with queries. Their other outputs serve training."""

_THRESHOLD = 0.9
_THRESHOLDS = ("threshold", "mask_threshold", "overlap_mask_area_threshold")

Fraction = Annotated[float, Field(ge=0, le=1)]


class Segments(TypedDict):
    """Segments of an image. Each list has one entry per segment."""

    masks: list[str]
    """Masks as PNG of 8 bits in base64, of the image's size: 255 inside, 0 outside."""
    scores: list[float]
    """Scores of the segments. 1 if a semantic model returns none."""
    labels: list[str]


class ImageSegmentationRequest(MediaRequest):
    inputs: ImageInputs
    subtask: Literal["panoptic", "instance", "semantic"] | None = Field(
        default=None, description="Default: the first of these three that the model supports."
    )
    threshold: Fraction | None = Field(
        default=None, description="Minimum score of a segment. Default: 0.9. Not for semantic."
    )
    mask_threshold: Fraction | None = Field(
        default=None,
        description="Minimum probability at which a pixel counts for a mask. Default: 0.5. Not "
        "for semantic.",
    )
    overlap_mask_area_threshold: Fraction | None = Field(
        default=None,
        description="Segments are dropped if other segments leave at most this share of their "
        "mask uncovered. Default: 0.5. Not for semantic.",
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
        self._check_thresholds(subtask, [name for name in _THRESHOLDS if name in parameters])
        return super().preprocess(item, parameters)

    def _check_thresholds(self, subtask: str, given: Sequence[str]) -> None:
        if subtask == "semantic" and given:
            raise InputError(
                f"'{given[0]}' is not for semantic segmentation, which has no scores: omit it.",
                field=given[0],
                of_item=False,
            )

    def _subtask(self, parameters: Mapping[str, Any]) -> str:
        subtask: str = parameters.get("subtask") or self._subtasks[0]
        if subtask not in self._subtasks:
            raise InputError(
                f"This model does not support '{subtask}'. Use one of {', '.join(self._subtasks)}.",
                field="subtask",
                of_item=False,
            )
        return subtask

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        # The subtask is always passed: the pipeline object's own default never reaches `semantic`
        # if its processor also supports `panoptic` or `instance`.
        return {**parameters, "subtask": self._subtask(parameters)}

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        outputs = super().run(model, call, batch)
        queries = {name: outputs[name] for name in _QUERIES if name in outputs}
        return queries if len(queries) == len(_QUERIES) else outputs

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Segments:
        import numpy

        segments = self.segments(outputs, parameters)
        return Segments(
            masks=[mask_png(numpy.asarray(segment["mask"])) for segment in segments],
            scores=[1.0 if segment["score"] is None else segment["score"] for segment in segments],
            labels=[segment["label"] for segment in segments],
        )

    def segments(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Returns `label`, `score` and `mask` of each segment, as the pipeline object returns
        them.
        """
        return super().postprocess(outputs, parameters)


class OneFormerStages(ImageSegmentationStages):
    """OneFormer, which receives the subtask as text."""

    parts = {"tokenizer": "AutoTokenizer"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from stoker.models.stages.oneformer import patch_processor

        patch_processor()
        # Without a file name the processor would fetch this file of class names, which only
        # training uses.
        self._parts["image_processor"] = load_image_processor(folder, class_info_file="")

    def attach(self, model: Any) -> None:
        import transformers

        super().attach(model)
        self._processor: Any = transformers.OneFormerProcessor(
            self._parts["image_processor"],
            self._parts["tokenizer"],
            task_seq_length=model.config.task_seq_len,
        )

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        subtask = self._subtask(parameters)
        self._check_thresholds(subtask, [name for name in _THRESHOLDS if name in parameters])
        return [self._sample(self.image(item), subtask)]

    def _sample(self, picture: Any, subtask: str) -> Sample:
        # The pipeline object's own preprocessing is not used: it leaves the ids of padding
        # unchanged, but the model was trained on zeros.
        prepared = self._processor(images=[picture], task_inputs=[subtask], return_tensors="pt")
        return self.sample({**prepared, "target_size": [(picture.height, picture.width)]})

    def probe(self, length: int, number: int = 0) -> Sample:
        return self._sample(specimens.picture(number), SUBTASKS[0])


class EomtStages(ImageSegmentationStages):
    """EoMT. A semantic model may see an image in several parts, each of which is a separate
    sample.
    """

    def attach(self, model: Any) -> None:
        super().attach(model)
        # transformers removes the padding from masks only for panoptic and instance segmentation,
        # and merges parts only for semantic segmentation.
        split = self._parts["image_processor"].do_split_image
        self._subtasks = ["semantic"] if split else ["panoptic", "instance"]

    def _check_thresholds(self, subtask: str, given: Sequence[str]) -> None:
        super()._check_thresholds(subtask, given)
        if subtask == "instance" and (unused := [name for name in given if name != "threshold"]):
            raise InputError(
                f"'{unused[0]}' is not for instance segmentation with this model: omit it.",
                field=unused[0],
                of_item=False,
            )

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        (whole,) = super().preprocess(item, parameters)
        return [
            Sample({"pixel_values": part[None]}, whole.extras)
            for part in whole.features["pixel_values"]
        ]

    def segments(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        import torch

        parts = {name: torch.cat([output[name] for output in outputs]) for name in _QUERIES}
        if self._subtask(parameters) != "instance":
            return super().segments([{**outputs[0], **parts}], parameters)
        # The pipeline object passes options that this method does not accept.
        (result,) = self._parts["image_processor"].post_process_instance_segmentation(
            Outputs(parts),
            target_sizes=outputs[0]["target_size"],
            threshold=parameters.get("threshold", _THRESHOLD),
        )
        return [
            {
                "label": self.config.id2label[segment["label_id"]],
                "score": segment["score"],
                "mask": result["segmentation"] == segment["id"],
            }
            for segment in result["segments_info"]
        ]


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
        "OneFormerForUniversalSegmentation",
        "EomtForUniversalSegmentation",
        "EomtDinov3ForUniversalSegmentation",
    ),
    families=(
        "detr",
        "eomt",
        "eomt_dinov3",
        "mask2former",
        "maskformer",
        "oneformer",
        "segformer",
    ),
    example={"inputs": "https://images.example/street.jpg"},
    example_result={"masks": ["iVBORw0KGgo…"], "scores": [0.99], "labels": ["road"]},
    stages=by_kind(
        ImageSegmentationStages,
        {"oneformer": OneFormerStages, "eomt": EomtStages, "eomt_dinov3": EomtStages},
    ),
)
