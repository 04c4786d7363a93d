"""SAM 2's image processor for Pillow: transformers' own needs torchvision.

Imported inside the stages, as it needs transformers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import BatchFeature, SamImageProcessorPil


class Sam2ImageProcessorPil(SamImageProcessorPil):
    """SAM's, but that an image fills the whole square that the model sees.

    It takes what `Sam2ImageProcessor` was saved with.
    """

    size = {"height": 1024, "width": 1024}
    mask_size = {"height": 256, "width": 256}
    do_pad = False
    pad_size = None
    mask_pad_size = None

    def resize(self, image: Any, size: Any, resample: Any = None, **kwargs: Any) -> Any:
        # Past SAM's own, which keeps the image's proportions.
        return super(SamImageProcessorPil, self).resize(image, size, resample=resample, **kwargs)

    def _preprocess_image_like_inputs(self, *args: Any, **kwargs: Any) -> BatchFeature:
        own: Any = super()
        prepared: BatchFeature = own._preprocess_image_like_inputs(*args, **kwargs)
        del prepared["reshaped_input_sizes"]
        return prepared

    def generate_crop_boxes(
        self,
        image: Any,
        target_size: int,
        crop_n_layers: int = 0,
        overlap_ratio: float = 512 / 1500,
        points_per_crop: int = 32,
        *more: Any,
    ) -> tuple[Any, Any, Any, Any]:
        """Crops of the image, and where the points of each lie in what the model sees of it.

        transformers' own places them as in SAM, whose images keep their proportions, and so leaves
        out a part of all that are not square. Here they are where `Sam2Processor` places a point.
        """
        own: Any = super()
        boxes, points, crops, labels = own.generate_crop_boxes(
            image, target_size, crop_n_layers, overlap_ratio, points_per_crop, *more
        )
        side = (torch.arange(points_per_crop) + 0.5) * (target_size / points_per_crop)
        grid = torch.cartesian_prod(side, side).flip(1)
        return boxes, grid[None, :, None].expand_as(points), crops, labels

    def post_process_masks(
        self,
        masks: Sequence[torch.Tensor],
        original_sizes: Sequence[Sequence[int]],
        *,
        mask_threshold: float = 0.0,
        binarize: bool = True,
        **_: Any,
    ) -> list[torch.Tensor]:
        """Masks (points, masks of each, height, width) of each image in the image's own size."""
        scaled = [
            torch.nn.functional.interpolate(each, list(size), mode="bilinear", align_corners=False)
            for each, size in zip(masks, original_sizes, strict=True)
        ]
        return [each > mask_threshold for each in scaled] if binarize else scaled
