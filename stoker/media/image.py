"""Decodes images from bytes as the model should see them.

An image without transparency has the same result as transformers' `load_image`, upright and in RGB.
Two kinds differ:

- Transparent pixels are laid on white. `load_image` drops the alpha channel, which exposes the
  colour that an editor left under it, usually black: a drawing in black becomes a black square.
- Grey of 16 bits is scaled to 8. `load_image` clips it, which leaves white.

Colour profiles are ignored, as `load_image` ignores them.
"""

import io
import warnings
from typing import Any

import numpy
from PIL import Image, ImageOps, UnidentifiedImageError

from stoker.base.media_limits import MediaLimits
from stoker.media.errors import MediaError, refusing

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Served formats, recognised by content. Pillow knows many more, some of which start other
programs.
"""

_OPAQUE, _HALF = 255, 128

# Between its ceiling and twice its ceiling, Pillow would only warn.
warnings.simplefilter("error", Image.DecompressionBombWarning)


def decode(data: bytes | memoryview, limits: MediaLimits) -> Image.Image:
    """Decodes the image in a file, upright, in mode RGB. Of an animation, the first frame.

    Raises `MediaError` for a format not in `FORMATS`, for more than `limits.image_pixels` pixels
    (read from the header, before anything is decoded), for no pixels, and for a damaged or short
    file.
    """
    with refusing("image"):
        return _to_rgb(_upright(data, limits))


def decode_mask(data: bytes | memoryview, limits: MediaLimits) -> Image.Image:
    """Decodes the image in a file as an upright mask: mode L, 255 for marked pixels and 0
    elsewhere.

    Transparent pixels mark, as in OpenAI's API. Without any, white pixels do, as in diffusers.
    Values between are rounded to the nearer. Raises `MediaError` as `decode` does.
    """
    with refusing("image"):
        image = _upright(data, limits)
        if image.has_transparency_data:
            alpha = image.convert("RGBA").getchannel("A")
            if alpha.point([_OPAQUE * (value < _OPAQUE) for value in range(256)]).getbbox():
                return alpha.point([_OPAQUE * (value < _HALF) for value in range(256)])
        return _to_rgb(image).convert("L").point([_OPAQUE * (v >= _HALF) for v in range(256)])


def _upright(data: bytes | memoryview, limits: MediaLimits) -> Image.Image:
    try:
        image: Any = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise MediaError(f"The image is not one of {', '.join(FORMATS)}.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(limits) from error
    with image:
        _check_size(image, limits)
        image.load()
        # A GIF's frame may be larger than the size in its header.
        _check_size(image, limits)
        return ImageOps.exif_transpose(image)


def _check_size(image: Image.Image, limits: MediaLimits) -> None:
    if not image.width or not image.height:
        raise MediaError("The image has no pixels.")
    if image.width * image.height > limits.image_pixels:
        raise _too_large(limits)


def _too_large(limits: MediaLimits) -> MediaError:
    return MediaError(f"The image has more than {limits.image_pixels:,} pixels.")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_16_bit(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Converts grey of 16 bits by its high byte, as Pillow reads colours of 16 bits.

    Mode I also holds grey of 32 bits, with a range that no file names: it is read as 16 bits, and
    clipped there.
    """
    grey = numpy.asarray(image).astype(numpy.int64)
    return Image.fromarray((grey.clip(0, 0xFFFF) >> 8).astype(numpy.uint8))
