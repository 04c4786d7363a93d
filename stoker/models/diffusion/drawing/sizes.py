"""The sizes of images that a model can draw, and images brought to them."""

import math
from dataclasses import dataclass
from typing import Any

from stoker.models.stages.base import InputError


@dataclass(frozen=True)
class Bounds:
    """What a model asks of width and height, in pixels."""

    multiple: int
    largest: int
    native: tuple[int, int]

    def check(self, width: int, height: int) -> None:
        """Raise `InputError` for a size that is not right, naming the nearest that are."""
        below = tuple(self._kept(math.floor(side / self.multiple)) for side in (width, height))
        above = tuple(self._kept(math.ceil(side / self.multiple)) for side in (width, height))
        if below == above == (width, height):
            return
        near = " or ".join(f"{one[0]}x{one[1]}" for one in dict.fromkeys((below, above)))
        raise InputError(
            f"This model does not draw {width}x{height}: width and height must be multiples of "
            f"{self.multiple} up to {self.largest}. The nearest are {near}.",
            field="size",
        )

    def nearest(self, width: int, height: int) -> tuple[int, int]:
        """An image's own size, as near as the model can draw it.

        One with more pixels than the model was made for is scaled down to as many.
        """
        scale = min(1.0, math.sqrt(math.prod(self.native) / (width * height)))
        sides = (round(side * scale / self.multiple) for side in (width, height))
        wide, high = (self._kept(side) for side in sides)
        return wide, high

    def _kept(self, multiples: int) -> int:
        return min(max(1, multiples), self.largest // self.multiple) * self.multiple


def resized(image: Any, size: tuple[int, int]) -> Any:
    """A PIL image in another size, by the filter that diffusers uses."""
    from PIL import Image

    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def resized_mask(mask: Any, size: tuple[int, int]) -> Any:
    """A mask in another size, still of 0 and 255 only."""
    return resized(mask, size).point([255 * (value >= 128) for value in range(256)])


def pasted(drawn: Any, image: Any, mask: Any) -> Any:
    """The image with what was drawn where the mask is white."""
    from PIL import Image

    return Image.composite(drawn, image, mask)
