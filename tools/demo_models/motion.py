"""Short clips of one shape that moves, grows, shrinks or stands still, each with its name."""

import io
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import av
from PIL import Image

from tools.demo_models.shapes import COLOURS, KINDS, SIZE, Background, Shape, render

LABELS = (
    "moving left",
    "moving right",
    "moving up",
    "moving down",
    "growing",
    "shrinking",
    "standing still",
)
FRAMES = 8
"""Number of frames of a training clip, equal to the model's input."""

Clip = list[Image.Image]
Example = tuple[Clip, str]

_COURSES = {
    "moving left": (-1, 0),
    "moving right": (1, 0),
    "moving up": (0, -1),
    "moving down": (0, 1),
}
HELD_OUT_PAIRS = [(kind, list(COLOURS)[at]) for at, kind in enumerate(KINDS)]
_PAIRS = [(kind, colour) for kind in KINDS for colour in COLOURS]


def training(rng: Random, count: int) -> list[Example]:
    """Returns training clips of eight frames."""
    pairs = [pair for pair in _PAIRS if pair not in HELD_OUT_PAIRS]
    return [_compressed(_draw(rng, pairs, FRAMES), rng) for _ in range(count)]


def held_out(count: int, seed: int = 1, frames: int = 24) -> list[Example]:
    """Returns clips of shapes in colours that the training never uses for them: RGB, 64 by 64
    pixels.
    """
    rng = Random(seed)  # noqa: S311 - draws clips, no secrets
    return [_draw(rng, HELD_OUT_PAIRS, frames) for _ in range(count)]


def encode(clip: Clip, rate: int = 12) -> bytes:
    """Encodes the clip as an MP4 file with H.264 at `rate` frames per second."""
    buffer = io.BytesIO()
    frames: Any = av.VideoFrame
    file: Any = av.open(buffer, "w", format="mp4")
    with file:
        stream = file.add_stream("libx264", rate=rate, options={"threads": "1"})
        stream.width, stream.height = clip[0].size
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, rate)
        for image in clip:
            file.mux(stream.encode(frames.from_image(image)))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def _draw(rng: Random, pairs: Sequence[tuple[str, str]], frames: int) -> Example:
    label = rng.choice(LABELS)
    first, last = _ends(rng, *rng.choice(pairs), label)
    background = Background.draw(rng)
    noise = rng.uniform(0, 8)
    steps = [at / (frames - 1) for at in range(frames)]
    shapes = [_between(first, last, step) for step in steps]
    return [render([shape], background, rng, noise=noise) for shape in shapes], label


def _ends(rng: Random, kind: str, colour: str, label: str) -> tuple[Shape, Shape]:
    """Returns the shape in the first frame and in the last one, both inside the picture."""
    small, middling, large = (
        rng.uniform(*span) for span in ((0.1, 0.14), (0.1, 0.18), (0.22, 0.3))
    )
    across, down = _COURSES.get(label, (0, 0))
    radius = SIZE * (middling if label in _COURSES else large)
    # Half of a movement of 0.4 to 0.6 of the picture's size, to each side of the path's middle.
    half = SIZE * rng.uniform(0.2, 0.3)
    side = rng.uniform(-0.2, 0.2) * half
    shift = (across * half + abs(down) * side, down * half + abs(across) * side)
    x, y = (_middle(rng, radius + abs(each)) for each in shift)
    shape = Shape(kind, colour, x, y, radius, rng.uniform(-25, 25))
    if label in _COURSES:
        ends = [replace(shape, x=x + way * shift[0], y=y + way * shift[1]) for way in (-1, 1)]
        return ends[0], ends[1]
    if label == "standing still":
        still = replace(shape, radius=SIZE * rng.uniform(small, large))
        return still, still
    smaller = replace(shape, radius=SIZE * small)
    return (smaller, shape) if label == "growing" else (shape, smaller)


def _middle(rng: Random, margin: float) -> float:
    return rng.uniform(margin, SIZE - margin)


def _between(first: Shape, last: Shape, step: float) -> Shape:
    x, y, radius = (
        (1 - step) * getattr(first, name) + step * getattr(last, name)
        for name in ("x", "y", "radius")
    )
    return replace(first, x=x, y=y, radius=radius)


def _compressed(example: Example, rng: Random) -> Example:
    """Returns the clip with the blocks and blurs of a lossy file, as served clips have them."""
    clip, label = example
    quality = rng.randint(25, 90)
    frames: Clip = []
    for image in clip:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        frames.append(Image.open(buffer).convert("RGB"))
    return frames, label
