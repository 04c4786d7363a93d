"""Object detection against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.models.tasks.object_detection import ObjectDetectionRequest
from tests.support.compare import equal
from tests.support.local import Local
from tests.support.media import image, image_media
from tests.support.vision import SIZE, SQUARE, TOWER, resnet

IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32)), image(3)]


def detr(folder: Path) -> None:
    config = transformers.DetrConfig(
        backbone_config=resnet(),
        use_timm_backbone=False,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=6,
        num_labels=5,
    )
    transformers.DetrForObjectDetection(config).save_pretrained(folder)
    size = {"shortest_edge": SIZE, "longest_edge": 2 * SIZE}
    transformers.DetrImageProcessorPil(size=size).save_pretrained(folder)


def yolos(folder: Path) -> None:
    config = transformers.YolosConfig(
        **TOWER, image_size=[SIZE, SIZE], patch_size=8, num_detection_tokens=6, num_labels=5
    )
    transformers.YolosForObjectDetection(config).save_pretrained(folder)
    transformers.YolosImageProcessorPil(size=SQUARE, do_pad=False).save_pretrained(folder)


@pytest.fixture(scope="module", params=[detr, yolos], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("object-detection", folder)
    yield local, transformers.pipeline("object-detection", model=str(folder), device="cpu")
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        detection_count = 0
        for picture in IMAGES:
            answer = local.ask({"inputs": image_media(picture), "threshold": 0.1})
            equal(answer, pipe(picture, threshold=0.1))
            detection_count += len(answer)
        assert detection_count

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        images = [image_media(picture) for picture in IMAGES]
        bodies = [{"inputs": images, "threshold": threshold} for threshold in (0.1, 0.2, 0.0)]
        local.batches.clear()
        for body, answer in zip(bodies, local.ask_together(bodies), strict=True):
            equal(answer, [pipe(picture, threshold=body["threshold"]) for picture in IMAGES])
        assert max(local.batches) > 1

    def test_default_threshold(self, case: Any) -> None:
        local, pipe = case
        equal(local.ask({"inputs": image_media(IMAGES[0])}), pipe(IMAGES[0]))

    def test_nothing_scores_above_1(self, case: Any) -> None:
        local, _ = case
        assert local.ask({"inputs": image_media(IMAGES[0]), "threshold": 1}) == []


@pytest.mark.parametrize("wrong", [{"threshold": 1.1}, {"threshold": -0.1}, {"top_k": 3}], ids=str)
def test_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ObjectDetectionRequest.model_validate({"inputs": "aGk=", **wrong})
    assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)
