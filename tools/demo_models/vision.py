"""What the builds of image models share: processors, pixels, positions and augmentation."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor
from transformers import ViTImageProcessorPil

from tools.demo_models.shapes import COLOURS, KINDS

CARD: dict[str, Any] = {
    "language": "",
    "source": "All pictures were drawn by `{build}`; no third party's data was used.",
    "toolkit": f"Pillow {PIL.__version__}",
    "repeatable": "The pictures came out the same in two processes.",
}
"""The card's fields that differ from those of a text model."""

SHAPES = (
    f"one of {', '.join(KINDS[:-1])} and {KINDS[-1]}, painted {', '.join(list(COLOURS)[:-1])} or "
    f"{list(COLOURS)[-1]}, of any place and of varied size, shade and turn (up to 25 degrees), on "
    "a pale or dark greyish ground that is flat, shaded, striped or checked, under grain"
)
"""What is in a picture, for the cards."""
PORTRAIT = SHAPES.replace(
    "of any place and of varied size", "large, of varied place, size"
).replace("pale or dark", "pale")
"""The same for `shapes.portrait`."""


def processor(size: int, kind: Any = ViTImageProcessorPil, **fields: Any) -> Any:
    """An image processor that makes any picture `[3, size, size]` in -1..1."""
    return kind(
        size={"height": size, "width": size},
        do_convert_rgb=True,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        **fields,
    )


def pixels(processor: Any, images: Sequence[Image.Image]) -> Tensor:
    """`[images, 3, height, width]` of float32, as the served model gets them."""
    return processor(images=list(images), return_tensors="pt")["pixel_values"]


def stored(processor: Any, images: Sequence[Image.Image]) -> Tensor:
    """`pixels` in a quarter of the memory: uint8, to be read through `restored`."""
    batch = processor(
        images=list(images), return_tensors="pt", do_rescale=False, do_normalize=False
    )
    return batch["pixel_values"]


def restored(batch: Tensor) -> Tensor:
    """The `pixels` that were `stored`."""
    return batch.float() / 127.5 - 1


def shaken(batch: Tensor, grain: float = 0.05) -> Tensor:
    """Pixels with brightness, contrast and grain that change at every sight."""
    count = len(batch)
    contrast = 1 + 0.15 * (2 * torch.rand(count, 1, 1, 1) - 1)
    brightness = 0.1 * (2 * torch.rand(count, 1, 1, 1) - 1)
    return batch * contrast + brightness + grain * torch.randn(batch.shape)


def shuffled(count: int, size: int) -> Iterator[Tensor]:
    """Endless batches of indices below `count`, every one once in a round."""
    while True:
        order = torch.randperm(count)
        yield from (order[start : start + size] for start in range(0, count, size))


def set_positions(table: Tensor, grid: int, before: int = 1) -> None:
    """Starts the positions of `grid` by `grid` patches as sines, after `before` other tokens.

    `table` is `[tokens, width]`. From noise, a small model would need most of its training to find
    out which patches are neighbours. Sines as in arXiv:2104.02057, app. B, scaled down.
    """
    quarter = table.shape[1] // 4
    rates = torch.exp(-math.log(20.0) * torch.arange(quarter) / quarter) * math.pi / 2
    at = torch.arange(grid)[:, None] * rates
    waves = torch.cat([at.sin(), at.cos()], 1)
    rows = waves[:, None].expand(grid, grid, -1)
    both = torch.cat([rows, rows.transpose(0, 1)], 2).reshape(grid * grid, -1)
    with torch.no_grad():
        table.mul_(0.02)
        table[before : before + grid * grid] = 0.5 * both


def rounded_down(share: float) -> float:
    """A figure for a card, which never says more than was measured."""
    return math.floor(share * 1000 + 1e-9) / 1000


def nearest(vectors: Tensor) -> np.ndarray[Any, Any]:
    """For each row of `[n, width]`, the index of the other row with the highest cosine."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    return (unit @ unit.T).fill_diagonal_(-2).argmax(1).numpy()
