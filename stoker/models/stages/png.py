"""Images in answers: PNG in base64."""

import base64
import io
from typing import Any

_COMPRESSION = 1
"""Compression level of zlib. Masks are runs of equal pixels: higher levels are slow and save
little.
"""


def grey_png(pixels: Any) -> str:
    """Returns a grey PNG of 8 bits in base64, from a numpy array of uint8 and shape (height,
    width).
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=_COMPRESSION)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def mask_png(mask: Any) -> str:
    """Returns a PNG in base64 from a numpy array of shape (height, width). Pixels are 255 for
    nonzero values and 0 otherwise.
    """
    import numpy

    return grey_png((mask != 0).astype(numpy.uint8) * 255)
