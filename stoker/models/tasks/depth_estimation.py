"""Depth estimation: the distance of each pixel of an image."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.pipelines import ImagePipelineStages, Outputs
from stoker.models.stages.png import grey_png
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import ImageInputs

MAX_VALUES = 4_000_000
"""Maximum number of pixels of an image with depths as numbers in the answer. Each takes ten
bytes.
"""


class Depth(TypedDict):
    depth: str
    """PNG of 8 bits in base64, of the image's size. The least depth is 0 and the greatest is
    255.
    """
    predicted_depth: NotRequired[list[list[float]]]
    """Rows of depths as the model returns them, of the image's size."""


class DepthEstimationRequest(MediaRequest):
    inputs: ImageInputs
    return_values: bool = Field(
        default=False,
        description="Also return `predicted_depth`: the depths as the model returns them, in rows.",
    )


class DepthEstimationStages(ImagePipelineStages):
    pipeline = "DepthEstimationPipeline"
    auto_class = "AutoModelForDepthEstimation"

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        image = super().read(item, parameters)
        if parameters["return_values"] and image.width * image.height > MAX_VALUES:
            raise InputError(
                f"The image has more than {MAX_VALUES:,} pixels, too many to return each "
                "depth. Send a smaller one, or leave out 'return_values'."
            )
        return image

    def sample(self, prepared: Mapping[str, Any]) -> Sample:
        sample = super().sample(prepared)
        # ZoeDepth selects one of its heads for the whole batch.
        sample.alone = len(getattr(self.config, "bin_configurations", ())) > 1
        return sample

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Depth:
        output = Outputs(outputs[0])
        processor, size = self._parts["image_processor"], output["target_size"]
        if self.config.model_type == "zoedepth":
            depth = _unframed(output["predicted_depth"], size, framed=processor.do_pad)
        else:
            (estimate,) = processor.post_process_depth_estimation(output, [size])
            depth = estimate["predicted_depth"].reshape(size)
        result = Depth(depth=grey_png(_bright(depth).numpy()))
        if parameters["return_values"]:
            result["predicted_depth"] = depth.tolist()
        return result


def _unframed(depth: Any, size: tuple[int, int], *, framed: bool) -> Any:
    """Returns the depths of an image without its reflected margins, resized to the image's size.

    Follows ZoeDepth's image processor of transformers, which resizes with torchvision.

    Args:
        depth: float32 of shape (1, height, width), of the model's own size.
        size: Height and width of the image.
        framed: True if the preprocessing reflected the image at its edges.
    """
    import torch

    margins = [int(math.sqrt(side / 2) * 3) if framed else 0 for side in size]
    whole = [side + 2 * margin for side, margin in zip(size, margins, strict=True)]
    resized = torch.nn.functional.interpolate(depth[None], whole, mode="bicubic")[0, 0]
    (top, left), (height, width) = margins, size
    return resized[top : top + height, left : left + width]


def _bright(depth: Any) -> Any:
    """Returns depths as brightness from 0 to 255, as the pipeline does. A uniform depth becomes
    black.
    """
    import torch

    low, high = depth.min(), depth.max()
    if high == low:
        return torch.zeros_like(depth, dtype=torch.uint8)
    return ((depth - low) / (high - low) * 255).to(torch.uint8)


TASK = Task(
    pipeline="depth-estimation",
    path="/v1/images/depth",
    summary="Estimate depth",
    request=DepthEstimationRequest,
    media={"inputs": "image"},
    result=Depth,
    architectures=("*ForDepthEstimation",),
    families=("depth_anything", "dpt", "glpn", "zoedepth"),
    example={"inputs": "https://images.example/street.jpg"},
    example_result={"depth": "iVBORw0KGgo…"},
    stages=DepthEstimationStages,
)
