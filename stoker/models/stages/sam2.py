"""SAM 2's image processor with Pillow, because transformers' own needs torchvision.

Imported inside the stages, as it needs transformers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import BatchFeature, SamImageProcessorPil


class Sam2ImageProcessorPil(SamImageProcessorPil):
    """SAM's image processor, but images fill the model's whole square.

    It accepts the saved settings of `Sam2ImageProcessor`.
    """

    size = {"height": 1024, "width": 1024}
    mask_size = {"height": 256, "width": 256}
    do_pad = False
    pad_size = None
    mask_pad_size = None

    def resize(self, image: Any, size: Any, resample: Any = None, **kwargs: Any) -> Any:
        # Skips SAM's own method, which keeps the image's proportions.
        return super(SamImageProcessorPil, self).resize(image, size, resample=resample, **kwargs)

    def _preprocess_image_like_inputs(self, *args: Any, **kwargs: Any) -> BatchFeature:
        parent: Any = super()
        prepared: BatchFeature = parent._preprocess_image_like_inputs(*args, **kwargs)
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
        """Returns crops of the image, and the positions of each crop's points in the model's input.

        transformers places the points as in SAM, where images keep their proportions. So it leaves
        out a part of every image that is not square. This method places points as `Sam2Processor`
        does.
        """
        parent: Any = super()
        boxes, points, crops, labels = parent.generate_crop_boxes(
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
        """Returns the masks (points, masks per point, height, width) of each image in the image's
        own size.
        """
        scaled = [
            torch.nn.functional.interpolate(each, list(size), mode="bilinear", align_corners=False)
            for each, size in zip(masks, original_sizes, strict=True)
        ]
        return [each > mask_threshold for each in scaled] if binarize else scaled
