"""Pixels into image files."""

import io
from typing import TYPE_CHECKING, Any

from stoker.wire.image_answer import ImageFormat

if TYPE_CHECKING:
    import torch


def to_picture(pixels: "torch.Tensor") -> Any:
    """A PIL image of floats of shape (channels, height, width) from 0 to 1.

    With one channel it is grey, else RGB. Rounded as diffusers' own `output_type="pil"` does.
    """
    from diffusers.image_processor import VaeImageProcessor

    processor: Any = VaeImageProcessor
    return processor.numpy_to_pil(processor.pt_to_numpy(pixels[None]))[0]


def encode(picture: Any, output_format: ImageFormat, quality: int) -> bytes:
    """A file of a PIL image. `quality` is of JPEG and WebP, 0 to 100; PNG loses nothing."""
    file = io.BytesIO()
    options = {} if output_format == "png" else {"quality": quality}
    picture.save(file, format=output_format.upper(), **options)
    return file.getvalue()
