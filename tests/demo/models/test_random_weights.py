"""The shipped models with random weights answer as transformers does, and their cards say that they
are random.
"""

from pathlib import Path
from typing import Any

import numpy
import pytest
import transformers

from stoker.demo.setup import MODELS as SHIPPED
from tests.support import speech
from tests.support.compare import equal
from tests.support.local import Local
from tests.support.media import image, image_media, sound
from tests.support.vision import grey
from tools.demo_models.random_weights import MODELS

PICTURE = image(1, (40, 90))
MEDIA = image_media(PICTURE)
SOUND = sound(0, 0.5, 8000)
LABELS = ["dog", "rain"]
WORD_BOXES = [["total", [10, 10, 60, 30]], ["12", [70, 10, 90, 30]]]


@pytest.mark.parametrize("name", MODELS)
def test_card_says_that_the_weights_are_random(name: str) -> None:
    folder = SHIPPED / name
    card = (folder / "README.md").read_text()
    assert f"# {name}: random weights\n" in card
    assert f"pipeline_tag: {MODELS[name][0]}\n" in card
    assert sum(file.stat().st_size for file in folder.rglob("*")) <= 300_000


def asked(name: str, body: dict[str, Any]) -> tuple[Any, str]:
    """Returns the answer of our stages, and the folder for the reference."""
    folder: Path = SHIPPED / name
    local = Local(MODELS[name][0], folder)
    try:
        return local.ask(body), str(folder)
    finally:
        local.close()


def test_depth() -> None:
    answer, folder = asked("random-depth", {"inputs": MEDIA, "return_values": True})
    expected = transformers.pipeline("depth-estimation", folder, device="cpu")(PICTURE)
    depth = numpy.array(answer["predicted_depth"])
    numpy.testing.assert_allclose(depth, expected["predicted_depth"], atol=1e-4)


def test_masks() -> None:
    loose = {
        "pred_iou_thresh": 0.0,
        "stability_score_thresh": 0.0,
        "points_per_crop": 4,
        "crops_nms_thresh": 0.9,
    }
    answer, _ = asked("random-masks", {"inputs": MEDIA, **loose})
    assert len(answer["masks"]) == len(answer["scores"]) > 0
    shapes = {numpy.array(grey(mask)).shape for mask in answer["masks"]}
    assert shapes == {(PICTURE.height, PICTURE.width)}


def test_table() -> None:
    body = {"table": {"city": ["Rome", "Oslo"], "tower": ["30", "12"]}, "query": "which tower?"}
    answer, _ = asked("random-table-qa", body)
    assert isinstance(answer["answer"], str)


def test_document() -> None:
    body = {"image": MEDIA, "question": "what is the total?", "word_boxes": WORD_BOXES}
    answer, folder = asked("random-document-qa", body)
    pipe = transformers.pipeline("document-question-answering", folder, device="cpu")
    equal(answer, pipe(image=None, question=body["question"], word_boxes=WORD_BOXES))


def test_audio() -> None:
    body = {"audio": SOUND.tolist(), "candidate_labels": LABELS}
    answer, folder = asked("random-audio-zero-shot", body)
    pipe = transformers.pipeline("zero-shot-audio-classification", folder, device="cpu")
    equal(answer, pipe(SOUND, candidate_labels=LABELS))


def test_detection() -> None:
    body = {"image": MEDIA, "candidate_labels": LABELS}
    answer, folder = asked("random-detection-zero-shot", body)
    pipe = transformers.pipeline("zero-shot-object-detection", folder, device="cpu")
    equal(answer, pipe(PICTURE, candidate_labels=LABELS))


def test_speech() -> None:
    folder = SHIPPED / "random-speech"
    local = Local("text-to-speech", folder)
    try:
        (sample,) = local.stages.preprocess("the train to berlin", {"seed": 3})
        waveform = local.stages.run(local.model, sample.call, sample.features)["waveform"]
    finally:
        local.close()
    expected = speech.spoken(folder, "the train to berlin", 3)
    numpy.testing.assert_allclose(waveform[0].detach().numpy(), expected, atol=1e-5)
    assert 0.1 < numpy.abs(expected).max() <= 1
