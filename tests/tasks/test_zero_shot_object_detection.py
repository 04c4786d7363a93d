"""Zero-shot object detection against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.models.tasks.zero_shot_object_detection import ZeroShotObjectDetectionRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import SQUARE, VISION, clip_text, clip_tokenizer

IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32))]
LABELS = ["cat", "tall dog", "a bird"]
ALL = 1000
"""Limit above the number of objects that one of these models can find."""


def save(folder: Path, config: Any, model: Any, processor: Any) -> None:
    tokenizer = clip_tokenizer(16)
    text = clip_text(tokenizer, 16)
    made = model(config(text_config=text, vision_config=VISION, projection_dim=32))
    made.save_pretrained(folder)
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def owlvit(folder: Path) -> None:
    processor = transformers.OwlViTImageProcessorPil(size=SQUARE, crop_size=SQUARE)
    save(folder, transformers.OwlViTConfig, transformers.OwlViTForObjectDetection, processor)


def owlv2(folder: Path) -> None:
    processor = transformers.Owlv2ImageProcessorPil(size=SQUARE)
    save(folder, transformers.Owlv2Config, transformers.Owlv2ForObjectDetection, processor)


@pytest.fixture(scope="module", params=[owlvit, owlv2], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("zero-shot-object-detection", folder)
    pipe = transformers.pipeline("zero-shot-object-detection", model=str(folder), device="cpu")
    yield local, pipe
    local.close()


def body(picture: Any, labels: Any = LABELS, **more: Any) -> dict[str, Any]:
    return {"image": image_media(picture), "candidate_labels": labels, **more}


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        detection_count = 0
        for picture in IMAGES:
            answer = local.ask(body(picture))
            equal(answer, pipe(picture, LABELS))
            detection_count += len(answer)
        assert detection_count

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        bodies = [
            body(IMAGES[0], ["one", "two"], threshold=0),
            body(IMAGES[1], ["a third one"], threshold=0.3),
            body(IMAGES[2]),
        ]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        for picture, request, answer in zip(IMAGES, bodies, answers, strict=True):
            threshold = request.get("threshold", 0.1)
            expected = pipe(
                picture, candidate_labels=request["candidate_labels"], threshold=threshold
            )
            equal(answer, expected)

    def test_several_images(self, case: Any) -> None:
        local, pipe = case
        images = [image_media(picture) for picture in IMAGES]
        answer = local.ask({"image": images, "candidate_labels": LABELS})
        equal(answer, [pipe(picture, LABELS) for picture in IMAGES])

    @pytest.mark.parametrize("top_k", [1, 5, ALL])
    def test_top_k(self, case: Any, top_k: int) -> None:
        local, pipe = case
        answer = local.ask(body(IMAGES[0], threshold=0, top_k=top_k))
        equal(answer, pipe(IMAGES[0], LABELS, threshold=0, top_k=top_k))
        # A box per patch and label, with 16 patches.
        assert len(answer) == min(top_k, 16 * len(LABELS))

    def test_a_label_as_long_as_the_model_takes(self, case: Any) -> None:
        local, pipe = case
        label = " ".join("abcdefghijklmn")
        equal(local.ask(body(IMAGES[0], [label])), pipe(IMAGES[0], [label]))


def test_a_label_too_long(case: Any) -> None:
    local, _ = case
    with pytest.raises(RefusedError) as refused:
        local.ask(body(IMAGES[0], ["cat", "a b c d e f g h i j k l m n o"]))
    assert refused.value.failure.param == "candidate_labels"
    assert "17 tokens; this model takes at most 16" in refused.value.failure.message


def test_boxes_are_not_named_by_tokens(case: Any) -> None:
    local, _ = case
    with pytest.raises(RefusedError, match="not supported by this model") as refused:
        local.ask(body(IMAGES[0], text_threshold=0.3))
    assert refused.value.failure.param == "text_threshold"


def test_an_image_passes_once_whatever_its_labels(case: Any) -> None:
    local, _ = case
    local.ask(body(IMAGES[0]))
    local.batches.clear()
    local.ask(body(IMAGES[1]))
    assert local.batches == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 2},
        {"text_threshold": 2},
        {"top_k": 0},
        {"top_k": 1001},
        {"candidate_labels": [""]},
        {"image": 3},
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any]) -> None:
    fields = {"image": "aGk=", "candidate_labels": ["cat"], **wrong}
    with pytest.raises(ValidationError) as refused:
        ZeroShotObjectDetectionRequest.model_validate(fields)
    assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)
