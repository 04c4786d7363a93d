"""Torch replacements for the torchvision functions that OneFormer's Pillow image processor still
uses.

Imported inside the stages, as it needs torch and transformers.
"""

from types import SimpleNamespace
from typing import Any

import torch
from transformers.models.oneformer import image_processing_pil_oneformer

BILINEAR = "bilinear"


def resize(image: torch.Tensor, size: tuple[int, int], interpolation: str) -> torch.Tensor:
    """Returns an image (1, channels, height, width) resized to another size (height, width).

    torchvision's `transforms.v2.functional.resize` does the same with tensors.
    """
    library: Any = torch.nn.functional
    return library.interpolate(
        image, size=size, mode=interpolation, align_corners=False, antialias=True
    )


def patch_processor() -> None:
    """Adds the replacements to the processor's module if torchvision is not installed."""
    module: Any = image_processing_pil_oneformer
    if not hasattr(module, "tvF"):
        modes = SimpleNamespace(BILINEAR=BILINEAR)
        module.tvF = SimpleNamespace(resize=resize, InterpolationMode=modes)
