"""Shared code of the image model builds: processors, pixels, positions and augmentation."""

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
"""Card fields that differ from those of a text model."""

SHAPES = (
    f"one of {', '.join(KINDS[:-1])} and {KINDS[-1]}, painted {', '.join(list(COLOURS)[:-1])} or "
    f"{list(COLOURS)[-1]}, of any place and of varied size, shade and turn (up to 25 degrees), on "
    "a pale or dark greyish ground that is flat, shaded, striped or checked, under grain"
)
"""Description of the pictures for the cards."""
PORTRAIT = SHAPES.replace(
    "of any place and of varied size", "large, of varied place, size"
).replace("pale or dark", "pale")
"""Description of pictures from `shapes.portrait` for the cards."""


def processor(size: int, kind: Any = ViTImageProcessorPil, **fields: Any) -> Any:
    """Returns an image processor that converts any picture to `[3, size, size]` in -1..1."""
    return kind(
        size={"height": size, "width": size},
        do_convert_rgb=True,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        **fields,
    )


def pixels(processor: Any, images: Sequence[Image.Image]) -> Tensor:
    """Returns `[images, 3, height, width]` of float32, as the served model receives them."""
    return processor(images=list(images), return_tensors="pt")["pixel_values"]


def stored(processor: Any, images: Sequence[Image.Image]) -> Tensor:
    """Returns `pixels` as uint8, in a quarter of the memory. Read them with `restored`."""
    batch = processor(
        images=list(images), return_tensors="pt", do_rescale=False, do_normalize=False
    )
    return batch["pixel_values"]


def restored(batch: Tensor) -> Tensor:
    """Returns the `pixels` of a batch from `stored`."""
    return batch.float() / 127.5 - 1


def shaken(batch: Tensor, grain: float = 0.05) -> Tensor:
    """Varies brightness, contrast and grain of pixels at random."""
    count = len(batch)
    contrast = 1 + 0.15 * (2 * torch.rand(count, 1, 1, 1) - 1)
    brightness = 0.1 * (2 * torch.rand(count, 1, 1, 1) - 1)
    return batch * contrast + brightness + grain * torch.randn(batch.shape)


def shuffled(count: int, size: int) -> Iterator[Tensor]:
    """Yields endless batches of indices below `count`. Each round contains every index once."""
    while True:
        order = torch.randperm(count)
        yield from (order[start : start + size] for start in range(0, count, size))


def set_positions(table: Tensor, grid: int, before: int = 1) -> None:
    """Initialises the positions of `grid` by `grid` patches as sines, after `before` other tokens.

    `table` is `[tokens, width]`. With random positions, a small model would use most of its
    training to learn which patches are neighbours. The sines follow arXiv:2104.02057, app. B,
    scaled down.
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
    """Rounds a figure down for a card, so that the card never overstates a measurement."""
    return math.floor(share * 1000 + 1e-9) / 1000


def nearest(vectors: Tensor) -> np.ndarray[Any, Any]:
    """Returns for each row of `[n, width]` the index of the other row with the highest cosine."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    return (unit @ unit.T).fill_diagonal_(-2).argmax(1).numpy()
