"""Sizes of images that a model can draw, and functions that resize images to them."""

import math
from dataclasses import dataclass
from typing import Any

from stoker.models.stages.base import InputError


@dataclass(frozen=True)
class Bounds:
    """A model's requirements for width and height, in pixels."""

    multiple: int
    largest: int
    native: tuple[int, int]

    def check(self, width: int, height: int) -> None:
        """Raises `InputError` for an invalid size. The error names the nearest valid sizes."""
        below = tuple(self._kept(math.floor(side / self.multiple)) for side in (width, height))
        above = tuple(self._kept(math.ceil(side / self.multiple)) for side in (width, height))
        if below == above == (width, height):
            return
        near = " or ".join(f"{size[0]}x{size[1]}" for size in dict.fromkeys((below, above)))
        raise InputError(
            f"This model cannot generate {width}x{height}: width and height must be "
            f"multiples of {self.multiple} up to {self.largest}. The nearest are {near}.",
            field="size",
        )

    def nearest(self, width: int, height: int) -> tuple[int, int]:
        """Returns the size nearest to an image's size that the model can draw.

        An image with more pixels than the model was trained for is scaled down to that number.
        """
        scale = min(1.0, math.sqrt(math.prod(self.native) / (width * height)))
        sides = (round(side * scale / self.multiple) for side in (width, height))
        wide, high = (self._kept(side) for side in sides)
        return wide, high

    def _kept(self, multiples: int) -> int:
        return min(max(1, multiples), self.largest // self.multiple) * self.multiple


def resized(image: Any, size: tuple[int, int]) -> Any:
    """Returns a PIL image resized with the filter that diffusers uses."""
    from PIL import Image

    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def resized_mask(mask: Any, size: tuple[int, int]) -> Any:
    """Returns a resized mask, with only the values 0 and 255."""
    return resized(mask, size).point([255 * (value >= 128) for value in range(256)])


def pasted(drawn: Any, image: Any, mask: Any) -> Any:
    """Returns the image with the drawn pixels wherever the mask is white."""
    from PIL import Image

    return Image.composite(drawn, image, mask)
