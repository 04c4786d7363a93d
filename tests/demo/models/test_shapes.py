"""Tests of the pictures that the image models are trained on."""

from random import Random

import numpy as np
import pytest

from tools.demo_models import shapes
from tools.demo_models.shapes import COLOURS, KINDS, Background, Shape, draw, relation, render


class TestDraw:
    def test_same_seed_draws_the_same(self) -> None:
        first, same, other = (draw(Random(seed), count=3) for seed in (7, 7, 8))
        assert first.image.tobytes() == same.image.tobytes()
        assert first.shapes == same.shapes
        assert first.image.tobytes() != other.image.tobytes()

    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_shapes_are_inside_and_apart(self, count: int) -> None:
        for seed in range(20):
            scene = draw(Random(seed), count=count, size=48)
            assert scene.image.size == (48, 48)
            assert len(scene.shapes) == count
            assert np.sum(scene.masks, axis=0).max() == 1
            assert all(min(left, top) >= 0 for left, top, _, _ in scene.boxes)
            assert all(max(right, bottom) <= 48 for _, _, right, bottom in scene.boxes)

    def test_distinct_shapes_differ_in_name(self) -> None:
        for seed in range(20):
            names = [each.name for each in draw(Random(seed), count=4, distinct=True).shapes]
            assert len(set(names)) == 4

    def test_asked_kinds_and_colours_alone(self) -> None:
        for seed in range(20):
            scene = draw(Random(seed), count=2, kinds=("star",), colours=("red", "blue"))
            assert {shape.name for shape in scene.shapes} <= {"red star", "blue star"}


class TestRender:
    GROUND = Background("flat", (200, 200, 200), (200, 200, 200))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("colour", COLOURS)
    def test_mask_holds_the_colour(self, kind: str, colour: str) -> None:
        shape = Shape(kind, colour, 30.0, 34.0, 16.0)
        image = np.asarray(render([shape], self.GROUND, Random(0), noise=0.0))
        assert (image[shapes.coverage(shape) == 1] == COLOURS[colour]).all()
        assert (image[shapes.coverage(shape) == 0] == 200).all()

    def test_circle_covers_its_area(self) -> None:
        covered = shapes.coverage(Shape("circle", "red", 32.0, 32.0, 10.0)).sum()
        assert covered == pytest.approx(np.pi * 100, rel=0.05)


class TestCaption:
    LEFT, RIGHT, LOW = (
        Shape("circle", "red", 10.0, 20.0, 5.0),
        Shape("square", "blue", 50.0, 22.0, 5.0),
        Shape("star", "green", 12.0, 50.0, 5.0),
    )

    def test_relation_is_the_longer_way(self) -> None:
        assert relation(self.LEFT, self.RIGHT) == "left of"
        assert relation(self.LEFT, self.LOW) == "above"
        assert relation(self.LOW, self.LEFT) == shapes.OPPOSITE["above"]

    def test_one_two_and_more(self) -> None:
        assert shapes.caption([self.LEFT]) == "a red circle"
        assert shapes.caption([self.LEFT, self.RIGHT]) == "a red circle left of a blue square"
        assert shapes.caption([self.LEFT, self.RIGHT, self.LOW]) == (
            "a red circle, a blue square and a green star"
        )
