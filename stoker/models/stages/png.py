"""Images in answers: PNG, base64."""

import base64
import io
from typing import Any

_COMPRESSION = 1
"""zlib's level. Masks are runs of equal pixels: higher levels take long and save little."""


def grey_png(pixels: Any) -> str:
    """Base64 of a grey PNG of 8 bits, from a numpy array of uint8 and shape (height, width)."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=_COMPRESSION)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def mask_png(mask: Any) -> str:
    """Base64 of a PNG with 255 where a numpy array of shape (height, width) is not 0."""
    import numpy

    return grey_png((mask != 0).astype(numpy.uint8) * 255)
