"""Small media made by the tests."""

import io

import numpy
from PIL import Image

from stoker.media.media import Media


def image(seed: int = 0, size: tuple[int, int] = (70, 50)) -> Image.Image:
    """A smooth random RGB image of (width, height)."""
    coarse = numpy.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def image_media(picture: Image.Image) -> Media:
    return Media("image", content=png(picture))
