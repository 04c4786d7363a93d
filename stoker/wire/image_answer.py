"""A replica's answer for images: encoded files, which the gateway packs."""

from typing import Literal

import msgspec

ImageFormat = Literal["png", "jpeg", "webp"]
Drawing = Literal["text", "image", "mask"]
"""Input of a drawing: a text (or nothing), an image, or an image with a mask that marks parts."""


class Images(msgspec.Struct, frozen=True):
    """Answer to a request for images, encoded as msgpack."""

    files: list[bytes]
    """Encoded images in the order of their seeds."""
    width: int
    height: int
    """Height of each image in pixels."""


class DrawingOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a request for images. None means the model's own value."""

    n: int = 1
    """Number of images, 1 to 10."""
    size: tuple[int, int] | None = None
    """Width and height in pixels."""
    steps: int | None = None
    guidance_scale: float | None = None
    strength: float | None = None
    """Share of an image that is drawn again, 0 to 1."""
    seed: int | None = None
    """Seed of the first image. The next images use the next numbers."""
    output_format: ImageFormat = "png"
    quality: int = 100
    """Quality of JPEG and WebP, 0 to 100."""
    partial_images: int = 0
    """Maximum number of unfinished images that a stream shows."""


class StreamHead(msgspec.Struct, frozen=True):
    """Fields of a stream's events in addition to the image."""

    event: Literal["image_generation", "image_edit"]
    created_at: int
