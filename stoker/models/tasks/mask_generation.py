"""Mask generation: masks of all objects in an image, found from a grid of points."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages.base import INVALID, InputError, Sample, by_kind
from stoker.models.stages.pipelines import ImagePipelineStages
from stoker.models.stages.png import mask_png
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import ImageInputs

if TYPE_CHECKING:
    import torch

_MASKS_A_POINT = 3
_MAX_MASK_VALUES = 64_000_000
"""Maximum number of values in the masks of one pass, which have the image's size: 256 MB."""

_READING = frozenset({"crops_nms_thresh"})
"""Parameters that only postprocessing uses."""

Fraction = Annotated[float, Field(ge=0, le=1)]


class Masks(TypedDict):
    """Masks of an image. Each list has one entry per mask."""

    masks: list[str]
    """Masks as PNG of 8 bits in base64, of the image's size: 255 inside, 0 outside."""
    scores: list[float]
    """Overlap with the true mask, as the model predicts it."""


class MaskGenerationRequest(MediaRequest):
    inputs: ImageInputs
    points_per_batch: int = Field(
        default=64,
        ge=1,
        le=1024,
        description="Maximum number of points that the model processes at once. Large images "
        "use fewer. Masks do not depend on it.",
    )
    points_per_crop: int = Field(
        default=32, ge=1, le=64, description="Points along each side of the grid."
    )
    crops_n_layers: int = Field(
        default=0,
        ge=0,
        le=3,
        description="Layers of crops that are processed in addition to the whole image. Layer n "
        "has 4ⁿ crops.",
    )
    crop_overlap_ratio: float = Field(
        default=512 / 1500,
        ge=0,
        lt=1,
        description="Share of the image's side by which crops of the first layer overlap.",
    )
    pred_iou_thresh: Fraction = Field(
        default=0.88, description="Masks with a higher predicted overlap are kept."
    )
    stability_score_thresh: Fraction = Field(
        default=0.95, description="Masks with a higher stability are kept."
    )
    stability_score_offset: float = Field(
        default=1,
        ge=0,
        le=100,
        description=(
            "Offset by which `mask_threshold` is raised and lowered to measure a mask's stability."
        ),
    )
    mask_threshold: float = Field(
        default=0, ge=-100, le=100, description="Pixels with a higher logit belong to a mask."
    )
    crops_nms_thresh: Fraction = Field(
        default=0.7,
        description="If the boxes of two masks overlap more, only the better mask is kept.",
    )


class MaskGenerationStages(ImagePipelineStages):
    """Stages of mask generation. The pipeline needs the model for preprocessing, so all of it runs
    next to the model.
    """

    pipeline = "MaskGenerationPipeline"
    auto_class = "AutoModelForMaskGeneration"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        import numpy
        import torch

        image = self.image(item)
        least = 4 ** parameters["crops_n_layers"]
        if min(image.size) < least:
            raise InputError(
                f"The image is {image.width}x{image.height}: with these 'crops_n_layers' each side "
                f"must have at least {least} pixels."
            )
        points = _MAX_MASK_VALUES // (_MASKS_A_POINT * image.width * image.height)
        options = {name: value for name, value in parameters.items() if name not in _READING}
        options["points_per_batch"] = max(1, min(points, options["points_per_batch"]))
        pixels = torch.as_tensor(numpy.array(image))[None]
        return [Sample({"pixels": pixels}, call=tuple(options.items()), alone=True)]

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        """Returns {"found": one dict per pass, with masks as run lengths, their scores and their
        boxes}, and `INVALID`.
        """
        import torch
        from PIL import Image

        options: Any = call
        before, during, _ = self._pipe._sanitize_parameters(**dict(options))
        image = Image.fromarray(batch["pixels"][0].cpu().numpy())
        # The pipeline object drops masks whose scores are NaN.
        scores: list[torch.Tensor] = []

        def keep(_model: Any, _inputs: Any, outputs: Any) -> None:
            scores.append(outputs["iou_scores"].flatten())

        hook = self._pipe.model.register_forward_hook(keep)
        try:
            found = [
                self._pipe.forward(prepared, **during)
                for prepared in self._pipe.preprocess(image, **before)
            ]
        finally:
            hook.remove()
        return {"found": found, INVALID: ~torch.cat(scores).isfinite().all()[None]}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Masks:
        import torch

        passes = outputs[0]["found"]
        runs = [run for each in passes for run in each["masks"]]
        scores = torch.cat([each["iou_scores"] for each in passes])
        boxes = torch.cat([each["boxes"] for each in passes])
        indices = suppressed(boxes.float(), scores.float(), parameters["crops_nms_thresh"])
        best: Any = scores[indices]
        return Masks(
            masks=[mask_png(_mask(runs[index])) for index in indices], scores=best.tolist()
        )

    def probe(self, length: int, number: int = 0) -> None:
        return None


class Sam2Stages(MaskGenerationStages):
    """SAM 2, which has a different image processor."""

    parts = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from stoker.models.stages.sam2 import Sam2ImageProcessorPil

        self._parts["image_processor"] = Sam2ImageProcessorPil.from_pretrained(
            str(folder), local_files_only=True
        )


def suppressed(boxes: "torch.Tensor", scores: "torch.Tensor", threshold: float) -> list[int]:
    """Returns the indices of the boxes (count, 4: x, y of two corners) that remain, best score
    first.

    Non-maximum suppression: a box is dropped if its overlap with a better box exceeds `threshold`
    of their union. Replaces `ops.nms` of torchvision, which the pipeline would need.
    """
    import torch

    order = scores.argsort(descending=True, stable=True)
    left, top, right, bottom = boxes.unbind(1)
    areas = (right - left) * (bottom - top)
    indices: list[int] = []
    while len(order):
        best, remaining = order[0], order[1:]
        indices.append(int(best))
        width = torch.minimum(right[best], right[remaining]) - torch.maximum(
            left[best], left[remaining]
        )
        height = torch.minimum(bottom[best], bottom[remaining]) - torch.maximum(
            top[best], top[remaining]
        )
        shared = width.clamp(min=0) * height.clamp(min=0)
        overlap = shared / (areas[best] + areas[remaining] - shared)
        # Two boxes without an area have an overlap of 0/0, which exceeds no threshold.
        order = remaining[~(overlap > threshold)]
    return indices


def _mask(runs: Mapping[str, Any]) -> Any:
    """Returns a mask (height, width) from run lengths, which follow the columns and begin
    outside.
    """
    import numpy

    height, width = runs["size"]
    counts: list[int] = runs["counts"]
    inside = numpy.arange(len(counts)) % 2 == 1
    return numpy.repeat(inside, counts).reshape(width, height).T


TASK = Task(
    pipeline="mask-generation",
    path="/v1/images/masks",
    summary="Generate masks",
    request=MaskGenerationRequest,
    media={"inputs": "image"},
    result=Masks,
    # Meta saved SAM 2 with its parts for video, which images do not need.
    architectures=("SamModel", "SamHQModel", "Sam2Model", "Sam2VideoModel"),
    families=("sam", "sam_hq", "sam2"),
    example={"inputs": "https://images.example/street.jpg", "points_per_crop": 16},
    example_result={"masks": ["iVBORw0KGgo…"], "scores": [0.97]},
    stages=by_kind(MaskGenerationStages, {"sam2": Sam2Stages, "sam2_video": Sam2Stages}),
)
