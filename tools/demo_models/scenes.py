"""Pictures of one to three shapes, with questions and captions.

Each shape has a quarter of the picture. Two shapes are next to each other or one above the other.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product
from random import Random
from typing import NamedTuple

from PIL import Image

from tools.demo_models.shapes import (
    COLOURS,
    SIZE,
    Background,
    Scene,
    Shape,
    caption,
    render,
)

KINDS = ("circle", "square", "triangle")
NAMES = tuple(f"{colour} {kind}" for colour, kind in product(COLOURS, KINDS))
NUMBERS = ("1", "2", "3")
ANSWERS = ("yes", "no", *COLOURS, *KINDS, *NUMBERS)

_CELLS = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Columns and rows of the picture's quarters."""
_ADJACENT = [
    (first_cell, other)
    for first_cell, other in permutations(_CELLS, 2)
    if first_cell[0] == other[0] or first_cell[1] == other[1]
]

COUNTING = ("How many shapes are there?", "How many shapes are in the picture?")
COLOUR_OF = ("What colour is the {}?", "What color is the {}?")
KIND_OF = ("What shape is {}?", "Which shape is {}?")
PRESENT = ("Is there a {}?", "Is there a {} in the picture?")

GROUND = (
    f"They are circles, squares and triangles, {', '.join(list(COLOURS)[:-1])} or "
    f"{list(COLOURS)[-1]}, each near the middle of a quarter of the picture and turned by up to 10 "
    "degrees, on an even dark grey ground under faint grain."
)
"""Description of the pictures for the cards."""


class Asked(NamedTuple):
    """A question about a picture, with its answer from `ANSWERS`."""

    image: Image.Image
    question: str
    answer: str


def training(rng: Random, count: int, weights: Sequence[int]) -> list[Scene]:
    """Returns training scenes. `weights` are the frequencies of one, two and three shapes."""
    return [_draw(rng, weights, unseen=False) for _ in range(count)]


def unseen(rng: Random, count: int, weights: Sequence[int]) -> list[Scene]:
    """Returns scenes with combinations of shapes that no training scene has."""
    return [_draw(rng, weights, unseen=True) for _ in range(count)]


def held_out_questions(count: int, seed: int = 1) -> list[Asked]:
    """Returns questions about unseen scenes of one to three shapes, 64 by 64 pixels."""
    rng = Random(seed)  # noqa: S311 - draws pictures, no secrets
    scenes = unseen(rng, count, (1, 2, 1))
    return [Asked(scene.image, *rng.choice(questions(rng, scene.shapes))) for scene in scenes]


def held_out_captions(count: int, seed: int = 2) -> list[tuple[Image.Image, str]]:
    """Returns pictures of two shapes that never occur together in training, 64 by 64 pixels."""
    rng = Random(seed)  # noqa: S311 - draws pictures, no secrets
    return [(scene.image, described(scene.shapes)) for scene in unseen(rng, count, (0, 1, 0))]


def questions(rng: Random, shapes: Sequence[Shape]) -> list[tuple[str, str]]:
    """Returns a question of every kind that has an answer, each with the answer."""
    kinds, colours = Counter(s.kind for s in shapes), Counter(s.colour for s in shapes)
    entries = [(rng.choice(COUNTING), str(len(shapes)))]
    for shape in shapes:
        if kinds[shape.kind] == 1:
            entries.append((rng.choice(COLOUR_OF).format(shape.kind), shape.colour))
        if colours[shape.colour] == 1:
            entries.append((rng.choice(KIND_OF).format(shape.colour), shape.kind))
    for answer, is_present in (("yes", True), ("no", False)):
        kind = [kind for kind in KINDS if (kind in kinds) == is_present]
        colour = [f"{colour} shape" for colour in COLOURS if (colour in colours) == is_present]
        entries += [
            (rng.choice(PRESENT).format(rng.choice(things)), answer)
            for things in (kind, colour)
            if things
        ]
    return entries


def described(shapes: Sequence[Shape]) -> str:
    """Returns the unique caption of at most two shapes. The left or the upper one comes first."""
    text = caption(shapes)
    return caption(shapes[::-1]) if " right of " in text or " below " in text else text


def mirrored(described: str) -> str:
    """Returns the caption of the picture mirrored left to right."""
    if " left of " not in described:
        return described
    first, second = described.split(" left of ")
    return f"{second} left of {first}"


def _draw(rng: Random, weights: Sequence[int], *, unseen: bool) -> Scene:
    """Draws a scene. One in five sets of two or three shapes is kept for `unseen`. Single shapes
    are used for both.

    The rule combines colours and kinds, so that neither alone reveals the held-out sets.
    """
    while True:
        (count,) = rng.choices((1, 2, 3), weights)
        names = rng.sample(range(len(NAMES)), count)
        is_held_out = sum(2 * (at // len(KINDS)) + at % len(KINDS) for at in names) % 5 == 0
        if count == 1 or is_held_out == unseen:
            break
    cells = rng.choice(_ADJACENT) if count == 2 else rng.sample(_CELLS, count)
    shapes = [_place(rng, NAMES[at], *cell) for at, cell in zip(names, cells, strict=True)]
    shade = rng.randint(10, 50)
    ground = Background("flat", (shade, shade, shade), (shade, shade, shade))
    return Scene(render(shapes, ground, rng, noise=4.0), tuple(shapes))


def _place(rng: Random, name: str, column: int, row: int) -> Shape:
    """Returns a shape near the middle of its quarter of the picture."""
    colour, kind = name.split()
    x, y = (SIZE * (0.25 + 0.5 * at) + rng.uniform(-1.5, 1.5) for at in (column, row))
    radius = rng.uniform(8.5, 10.5) * {"circle": 1.0, "square": 1.2, "triangle": 1.4}[kind]
    return Shape(kind, colour, x, y, radius, rng.uniform(-10, 10))
