"""Pictures of coloured shapes, with their names, captions, masks and boxes.

`draw` creates a random scene. `render` paints shapes at positions that the caller chose, such as
those of a moving picture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

KINDS: tuple[str, ...] = ("circle", "square", "triangle", "star")
COLOURS = {
    "red": (214, 38, 44),
    "green": (38, 158, 60),
    "blue": (36, 78, 212),
    "yellow": (238, 206, 38),
    "purple": (142, 50, 168),
}
SIZE = 64
STYLES = ("flat", "gradient", "stripes", "checks")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

_SUPERSAMPLING = 4
# Radii by the number of shapes in the picture.
_RADII = {1: (0.13, 0.27), 2: (0.10, 0.16), 3: (0.09, 0.12), 4: (0.09, 0.12)}
# A triangle as wide as a circle has a much smaller area. The reach makes the areas similar.
_REACH = {"circle": 1.0, "square": 1.2, "triangle": 1.4, "star": 1.45}
_CORNERS: dict[str, list[tuple[float, float]]] = {
    # (degrees clockwise from the top, share of the radius)
    "square": [(turn, 1.0) for turn in (45, 135, 225, 315)],
    "triangle": [(turn, 1.0) for turn in (0, 120, 240)],
    "star": [(36 * at, 0.42 if at % 2 else 1.0) for at in range(10)],
}

Style = Literal["flat", "gradient", "stripes", "checks"]
Pixels = npt.NDArray[Any]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels. Right and bottom are the first pixels outside."""


@dataclass(frozen=True)
class Shape:
    """A shape, its centre and radius (to the furthest corner) in pixels of the picture."""

    kind: str
    colour: str
    x: float
    y: float
    radius: float
    angle: float = 0.0
    """Rotation in degrees clockwise."""
    paint: tuple[int, int, int] | None = None
    """Shade of the colour. None means the plain colour."""

    @property
    def name(self) -> str:
        """Name such as `red circle`."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Background:
    """Two pale or dark greyish shades and their layout."""

    style: Style
    first: tuple[int, int, int]
    second: tuple[int, int, int]
    period: int = 8
    """Width of two stripes or checks, in pixels."""
    across: bool = False

    @staticmethod
    def draw(rng: Random, style: Style | None = None, *, pale: bool = False) -> "Background":
        """Returns a random background, dark or pale. With `pale`, it is always pale."""
        dark, light = rng.randint(10, 70), rng.randint(105, 245)
        level = rng.randint(190, 245) if pale else rng.choice((dark, light))
        drift = rng.choice((-1, 1)) * rng.randint(8, 22)
        return Background(
            style=style or rng.choice(STYLES),
            first=_greyish(rng, level),
            second=_greyish(rng, level + drift),
            period=rng.randint(6, 20),
            across=rng.random() < 0.5,
        )

    def pixels(self, size: int) -> Pixels:
        """Returns `[size, size, 3]` of float64 in 0..255."""
        at = np.arange(size, dtype=float)
        wave = (at % self.period >= self.period / 2).astype(float)
        share = {
            "flat": np.zeros((size, size)),
            "gradient": np.tile(at / (size - 1), (size, 1)),
            "stripes": np.tile(wave, (size, 1)),
            "checks": np.abs(wave[:, None] - wave[None, :]),
        }[self.style]
        share = (share.T if self.across else share)[:, :, None]
        return share * np.array(self.second) + (1 - share) * np.array(self.first)


@dataclass(frozen=True)
class Scene:
    """A picture and its shapes, in the order of `shapes`. No two shapes touch."""

    image: Image.Image
    shapes: tuple[Shape, ...]

    @property
    def masks(self) -> tuple[Pixels, ...]:
        """Masks of the shapes, each `[height, width]` of bool. A pixel belongs to a shape that
        covers at least half of it.
        """
        return tuple(coverage(shape, self.image.width) >= 0.5 for shape in self.shapes)

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Smallest box around the mask of each shape."""
        return tuple(_box(mask) for mask in self.masks)

    @property
    def caption(self) -> str:
        """Caption such as `a red circle` or `a red circle left of a blue square`. A list for more
        than two shapes.
        """
        return caption(self.shapes)


def draw(
    rng: Random,
    *,
    count: int = 1,
    size: int = SIZE,
    kinds: Sequence[str] = KINDS,
    colours: Sequence[str] = tuple(COLOURS),
    background: Background | None = None,
    noise: float = 8.0,
    distinct: bool = False,
    radii: tuple[float, float] | None = None,
) -> Scene:
    """Returns a scene of `count` shapes (1 to 4), each with random kind, colour, position, size and
    rotation.

    With `distinct`, no two shapes share both kind and colour. `radii` are the minimum and maximum
    radius of a circle as shares of `size`. Other kinds reach further, so that they do not look
    smaller. Neighbours differ clearly enough along one axis for `relation`. The same generator
    state draws the same scene.
    """
    pairs = [(kind, colour) for kind in kinds for colour in colours]
    chosen = rng.sample(pairs, count) if distinct else [rng.choice(pairs) for _ in range(count)]
    shapes: list[Shape] = []
    while len(shapes) < count:
        shapes = []
        for pair in chosen:
            shape = _place(rng, *pair, size, radii or _RADII[count])
            if all(_apart(shape, other, size) for other in shapes):
                shapes.append(shape)
    image = render(shapes, background or Background.draw(rng), rng, size, noise)
    return Scene(image, tuple(shapes))


def portrait(rng: Random, size: int = SIZE) -> Scene:
    """Returns one large shape on a pale background, which is easiest for a small model to
    distinguish.
    """
    return draw(rng, size=size, radii=(0.24, 0.32), background=Background.draw(rng, pale=True))


def render(
    shapes: Sequence[Shape],
    background: Background,
    rng: Random,
    size: int = SIZE,
    noise: float = 8.0,
) -> Image.Image:
    """Paints the shapes, later ones on top, as RGB of `size` by `size` with grain everywhere.

    `noise` is the grain's standard deviation in 0..255.
    """
    canvas = background.pixels(size)
    for shape in shapes:
        share = coverage(shape, size)[:, :, None]
        canvas = share * np.array(shape.paint or COLOURS[shape.colour]) + (1 - share) * canvas
    grain = np.random.default_rng(rng.getrandbits(64)).normal(0.0, noise, canvas.shape)
    return Image.fromarray(np.clip(canvas + grain, 0, 255).round().astype(np.uint8))


def coverage(shape: Shape, size: int = SIZE) -> Pixels:
    """Returns `[size, size]` of float in 0..1: the share of each pixel that the shape covers."""
    fine = size * _SUPERSAMPLING
    mask = Image.new("L", (fine, fine))
    pen = ImageDraw.Draw(mask)
    x, y, radius = (_SUPERSAMPLING * each for each in (shape.x, shape.y, shape.radius))
    if shape.kind == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    else:
        turns = [(math.radians(a + shape.angle), radius * r) for a, r in _CORNERS[shape.kind]]
        pen.polygon([(x + r * math.sin(a), y - r * math.cos(a)) for a, r in turns], fill=255)
    return np.asarray(mask.reduce(_SUPERSAMPLING), dtype=float) / 255


def relation(first: Shape, second: Shape) -> str:
    """Returns the position of the first shape relative to the second: `left of`, `right of`,
    `above` or `below`.
    """
    across, down = first.x - second.x, first.y - second.y
    if abs(across) >= abs(down):
        return "left of" if across < 0 else "right of"
    return "above" if down < 0 else "below"


def caption(shapes: Sequence[Shape]) -> str:
    """Returns a caption of the shapes."""
    names = [f"a {shape.name}" for shape in shapes]
    if len(names) == 2:
        return f"{names[0]} {relation(shapes[0], shapes[1])} {names[1]}"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _greyish(rng: Random, level: int) -> tuple[int, int, int]:
    red, green, blue = (min(max(level + rng.randint(-9, 9), 0), 255) for _ in range(3))
    return red, green, blue


def _place(rng: Random, kind: str, colour: str, size: int, radii: tuple[float, float]) -> Shape:
    radius = rng.uniform(*radii) * size * _REACH[kind]
    x, y = (rng.uniform(radius + 1, size - radius - 1) for _ in range(2))
    light = rng.uniform(0.85, 1.1)
    red, green, blue = (
        min(max(round(light * each + rng.uniform(-10, 10)), 0), 255) for each in COLOURS[colour]
    )
    return Shape(kind, colour, x, y, radius, rng.uniform(-25, 25), (red, green, blue))


def _apart(one: Shape, other: Shape, size: int) -> bool:
    across, down = abs(one.x - other.x), abs(one.y - other.y)
    touching = math.hypot(across, down) < one.radius + other.radius + 1
    return not touching and abs(across - down) > 0.08 * size


def _box(mask: Pixels) -> Box:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
