"""Tests of `tiny-video` as packaged."""

import numpy as np
import pytest
from transformers import AutoModelForVideoClassification

from stoker.demo.setup import MODELS as SHIPPED
from stoker.media.media import Media
from tests.demo.models.folders import check
from tests.support.local import Local
from tools.demo_models.motion import LABELS, encode, held_out

FOLDER = SHIPPED / "tiny-video"


def test_folder() -> None:
    check("tiny-video", "video-classification")


@pytest.fixture(scope="module")
def model():
    return AutoModelForVideoClassification.from_pretrained(FOLDER, local_files_only=True)


class TestHeldOut:
    def test_draws_the_same_again(self) -> None:
        (first,), (again,) = held_out(1), held_out(1)
        assert first[1] == again[1]
        assert [image.tobytes() for image in first[0]] == [image.tobytes() for image in again[0]]

    def test_shows_what_its_label_says(self) -> None:
        for clip, label in held_out(20, frames=2):
            change = np.asarray(clip[1], float) - np.asarray(clip[0], float)
            assert (np.abs(change).mean() > 1.5) or label == "standing still"

    def test_encodes_mp4(self) -> None:
        assert encode(held_out(1)[0][0])[4:8] == b"ftyp"


class TestModel:
    def test_names_its_labels(self, model) -> None:
        assert tuple(model.config.id2label.values()) == LABELS


def test_the_service_names_files() -> None:
    local = Local("video-classification", FOLDER)
    examples = held_out(20, seed=7)
    files = [Media("video", content=encode(clip)) for clip, _ in examples]
    answers = local.ask({"inputs": files, "top_k": 1})
    local.close()
    right = [
        answer[0]["label"] == label for answer, (_, label) in zip(answers, examples, strict=True)
    ]
    assert np.mean(right) >= 0.95
