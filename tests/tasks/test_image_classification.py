"""Image classification against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.image_classification import ImageClassificationRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import SIZE, VISION

IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32))]


def vit(folder: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=SIZE,
        patch_size=8,
        num_labels=7,
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": SIZE, "width": SIZE}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)


def convnext(folder: Path) -> None:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_labels=7
    )
    transformers.ConvNextForImageClassification(config).save_pretrained(folder)
    size = {"shortest_edge": SIZE}
    transformers.ConvNextImageProcessorPil(size=size).save_pretrained(folder)


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    size = {"height": SIZE, "width": SIZE}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)


def dinov2(folder: Path) -> None:
    config = transformers.Dinov2Config(**VISION, num_labels=7)
    save(transformers.Dinov2ForImageClassification(config), folder)


def siglip(folder: Path) -> None:
    config = transformers.SiglipConfig(vision_config=VISION, num_labels=7)
    save(transformers.SiglipForImageClassification(config), folder)


def resnet(folder: Path) -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 32], depths=[1, 1, 1, 1], num_labels=7
    )
    save(transformers.ResNetForImageClassification(config), folder)


def swin(folder: Path) -> None:
    config = transformers.SwinConfig(
        image_size=SIZE,
        patch_size=4,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        window_size=4,
        num_labels=7,
    )
    save(transformers.SwinForImageClassification(config), folder)


FAMILIES = [vit, convnext, dinov2, siglip, resnet, swin]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("image-classification", folder)
    yield local, transformers.pipeline("image-classification", model=str(folder), device="cpu")
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for picture in IMAGES:
            equal(local.ask({"inputs": image_media(picture)}), pipe(picture))

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        bodies = [{"inputs": [image_media(picture) for picture in IMAGES]}] * 3
        local.batches.clear()
        for answer in local.ask_together(bodies):
            equal(answer, [pipe(picture) for picture in IMAGES])
        assert max(local.batches) > 1

    @pytest.mark.parametrize(
        "parameters",
        [{"top_k": 1}, {"top_k": 1000}, {"function_to_apply": "sigmoid", "top_k": 2}],
        ids=str,
    )
    def test_parameters(self, case: Any, parameters: dict[str, Any]) -> None:
        local, pipe = case
        answer = local.ask({"inputs": image_media(IMAGES[0]), **parameters})
        equal(answer, pipe(IMAGES[0], **parameters))


class TestBadInputs:
    def test_not_an_image(self, case: Any) -> None:
        local, _ = case
        images = [image_media(IMAGES[0]), Media("image", content=b"hello")]
        with pytest.raises(RefusedError) as refused:
            local.ask({"inputs": images})
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "inputs[1]"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"top_k": 0},
            {"top_k": 1001},
            {"function_to_apply": "tanh"},
            {"labels": 3},
            {"inputs": 1},
        ],
        ids=str,
    )
    def test_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as refused:
            ImageClassificationRequest.model_validate({"inputs": "aGk=", **wrong})
        assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)
