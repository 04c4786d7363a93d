"""Image classification against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.compare import equal
from tests.support.local import Local
from tests.support.media import image, image_media

SIZE = 32
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


@pytest.fixture(scope="module", params=[vit, convnext], ids=lambda family: family.__name__)
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
