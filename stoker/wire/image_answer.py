"""What a replica answers with for images: encoded files as they are, for the gateway to pack."""

from typing import Literal

import msgspec

ImageFormat = Literal["png", "jpeg", "webp"]
Drawing = Literal["text", "image", "mask"]
"""What is drawn from: a text (or nothing), an image, an image of which a mask marks parts."""


class Images(msgspec.Struct, frozen=True):
    """msgpack of this is the answer to a request for images."""

    files: list[bytes]
    """Encoded images, in the order of their seeds."""
    width: int
    height: int
    """In pixels, of each."""


class DrawingOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of a request for images; what is None is the model's own."""

    n: int = 1
    """1 to 10 images."""
    size: tuple[int, int] | None = None
    """Width and height in pixels."""
    steps: int | None = None
    guidance_scale: float | None = None
    strength: float | None = None
    """How much of an image is drawn anew, 0 to 1."""
    seed: int | None = None
    """Of the first image; the next ones have the next numbers."""
    output_format: ImageFormat = "png"
    quality: int = 100
    """Of JPEG and WebP, 0 to 100."""
    partial_images: int = 0
    """How many unfinished images a stream shows, at most."""


class StreamHead(msgspec.Struct, frozen=True):
    """What the events of a stream say beside the image."""

    event: Literal["image_generation", "image_edit"]
    created_at: int
