"""Depth estimation: how far away each pixel of an image is."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from stoker.replica.images import grey_png
from stoker.replica.pipelines import ImagePipelineStages, Outputs
from stoker.replica.stages import InputError
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import ImageInputs

MAX_VALUES = 4_000_000
"""Most pixels of an image whose depths are answered as numbers, which take ten bytes each."""


class Depth(TypedDict):
    depth: str
    """PNG of 8 bits, base64, of the image's size: its least depth 0, its greatest 255."""
    predicted_depth: NotRequired[list[list[float]]]
    """Rows of depths as the model gives them, of the image's size."""


class DepthEstimationRequest(MediaRequest):
    inputs: ImageInputs
    return_values: bool = Field(
        default=False,
        description="Also answer `predicted_depth`: the depths as the model gives them, in rows.",
    )


class DepthEstimationStages(ImagePipelineStages):
    pipeline = "DepthEstimationPipeline"
    auto_class = "AutoModelForDepthEstimation"

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        image = super().read(item, parameters)
        if parameters["return_values"] and image.width * image.height > MAX_VALUES:
            raise InputError(
                f"The image has more than {MAX_VALUES:,} pixels, too many to answer each depth: "
                "send a smaller one, or leave out 'return_values'."
            )
        return image

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Depth:
        output = Outputs(outputs[0])
        (found,) = self._parts["image_processor"].post_process_depth_estimation(
            output, [output["target_size"]]
        )
        depth = found["predicted_depth"].reshape(output["target_size"])
        result = Depth(depth=grey_png(_bright(depth).numpy()))
        if parameters["return_values"]:
            result["predicted_depth"] = depth.tolist()
        return result


def _bright(depth: Any) -> Any:
    """Depths as brightness from 0 to 255, as the pipeline has it; all of one depth is black."""
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
    families=("depth_anything", "dpt", "glpn"),
    example={"inputs": "https://images.example/street.jpg"},
    example_result={"depth": "iVBORw0KGgo…"},
    stages=DepthEstimationStages,
)
