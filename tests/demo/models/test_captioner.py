"""Tests of `tiny-captioner` as packaged."""

import pytest
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from stoker.demo.setup import MODELS as SHIPPED
from tests.demo.models.folders import check
from tools.demo_models import captioner
from tools.demo_models.scenes import described, held_out_captions, mirrored
from tools.demo_models.shapes import Shape

FOLDER = SHIPPED / "tiny-captioner"


def test_folder() -> None:
    check("tiny-captioner", "image-to-text")


@pytest.fixture(scope="module")
def parts():
    return tuple(
        auto.from_pretrained(FOLDER, local_files_only=True)
        for auto in (AutoModelForImageTextToText, AutoTokenizer, AutoImageProcessor)
    )


class TestCaptions:
    LEFT, RIGHT = Shape("circle", "red", 10, 30, 5), Shape("square", "blue", 50, 35, 5)
    LOW = Shape("triangle", "green", 12, 60, 5)

    def test_name_the_left_or_the_upper_one_first(self) -> None:
        assert described([self.LEFT, self.RIGHT]) == "a red circle left of a blue square"
        assert described([self.RIGHT, self.LEFT]) == "a red circle left of a blue square"
        assert described([self.LOW, self.LEFT]) == "a red circle above a green triangle"
        assert described([self.LOW]) == "a green triangle"

    def test_mirror(self) -> None:
        caption = "a blue square left of a red circle"
        assert mirrored(described([self.LEFT, self.RIGHT])) == caption
        assert mirrored("a red circle above a blue square") == "a red circle above a blue square"

    def test_draws_the_same_again(self) -> None:
        first, again = held_out_captions(5), held_out_captions(5)
        assert [(image.tobytes(), caption) for image, caption in first] == [
            (image.tobytes(), caption) for image, caption in again
        ]


class TestModel:
    def test_describes_shapes_never_seen_together(self, parts) -> None:
        assert captioner.accuracy(*parts, held_out_captions(150)) >= 0.9
