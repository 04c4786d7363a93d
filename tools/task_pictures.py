"""Draws the responses of tasks that answer with places in a picture, next to the picture itself."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageColor, ImageDraw

from stoker.demo.examples import EXAMPLES, MEDIA

ROOT = Path(__file__).parents[1]
SCALE = 4
GAP = 8
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")


def picture(name: str, response: Any) -> bytes:
    """Returns a PNG with the example's picture on the left and the response on the right."""
    (file,) = EXAMPLES[name].files.values()
    given = Image.open(ROOT / MEDIA / file).convert("RGB")
    size = (given.width * SCALE, given.height * SCALE)
    large = given.resize(size, Image.Resampling.NEAREST)
    drawn = PICTURES[name](large, response)
    both = Image.new("RGB", (2 * size[0] + GAP, size[1]), "white")
    both.paste(large, (0, 0))
    both.paste(drawn, (size[0] + GAP, 0))
    written = io.BytesIO()
    both.save(written, "PNG", optimize=True)
    return written.getvalue()


def _colour(label: str, labels: Sequence[str]) -> str:
    """Returns the colour of a label, the same for all places with it."""
    return COLOURS[sorted({*labels}, reverse=True).index(label) % len(COLOURS)]


def _boxes(large: Image.Image, response: Any) -> Image.Image:
    drawn = large.copy()
    brush = ImageDraw.Draw(drawn)
    for number, found in enumerate(response):
        colour = _colour(found["label"], [item["label"] for item in response])
        edges = [found["box"][side] * SCALE for side in ("xmin", "ymin", "xmax", "ymax")]
        brush.rectangle(edges, outline=colour, width=3)
        text = f"{found['label']} {found['score']:.2f}"
        brush.text((edges[0], edges[1] - 14 * (number + 1)), text, fill=colour)
    return drawn


def _masks(large: Image.Image, response: Any) -> Image.Image:
    drawn = Image.new("RGB", large.size, "white")
    brush = ImageDraw.Draw(drawn)
    named: list[tuple[str, str]] = []
    for label, encoded in zip(response["labels"], response["masks"], strict=True):
        if label == "background":
            continue
        mask = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("L")
        colour = _colour(label, response["labels"])
        whole = Image.new("RGB", large.size, ImageColor.getrgb(colour))
        drawn.paste(whole, (0, 0), mask.resize(large.size, Image.Resampling.NEAREST))
        named.append((label, colour))
    for number, (label, colour) in enumerate(named):
        brush.text((6, 6 + 14 * number), label, fill=colour)
    return drawn


PICTURES: Mapping[str, Callable[[Image.Image, Any], Image.Image]] = {
    "image-segmentation": _masks,
    "object-detection": _boxes,
}
"""Maps tasks to the function that draws a response."""
