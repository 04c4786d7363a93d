"""Encodes pixels as image files."""

import io
from typing import TYPE_CHECKING, Any

from stoker.wire.image_answer import ImageFormat

if TYPE_CHECKING:
    import torch


def to_picture(pixels: "torch.Tensor") -> Any:
    """Returns a PIL image of floats of shape (channels, height, width) from 0 to 1.

    Images with one channel are grey, others RGB. Rounds as diffusers' own `output_type="pil"` does.
    """
    from diffusers.image_processor import VaeImageProcessor

    processor: Any = VaeImageProcessor
    return processor.numpy_to_pil(processor.pt_to_numpy(pixels[None]))[0]


def encode(picture: Any, output_format: ImageFormat, quality: int) -> bytes:
    """Returns a PIL image as a file. `quality` applies to JPEG and WebP, 0 to 100. PNG is
    lossless.
    """
    file = io.BytesIO()
    options = {} if output_format == "png" else {"quality": quality}
    picture.save(file, format=output_format.upper(), **options)
    return file.getvalue()
