"""Depth estimation against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from pydantic import ValidationError
from transformers.models.zoedepth import image_processing_pil_zoedepth

from stoker.models.tasks import depth_estimation
from stoker.models.tasks.depth_estimation import DepthEstimationRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import SIZE, SQUARE, TOWER, VISION, grey

IMAGES = [image(0, (70, 50)), image(1, (40, 90)), image(2, (32, 32)), image(3, (70, 50))]


def dpt(folder: Path) -> None:
    config = transformers.DPTConfig(
        **{**VISION, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
    )
    transformers.DPTForDepthEstimation(config).save_pretrained(folder)
    transformers.DPTImageProcessorPil(size=SQUARE).save_pretrained(folder)


def depth_anything(folder: Path) -> None:
    backbone = transformers.Dinov2Config(
        **{**TOWER, "num_hidden_layers": 4},
        image_size=SIZE,
        patch_size=8,
        out_indices=[1, 2, 3, 4],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=8,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        head_hidden_size=8,
    )
    transformers.DepthAnythingForDepthEstimation(config).save_pretrained(folder)
    # The model's input shape follows the image's shape.
    transformers.DPTImageProcessorPil(
        size=SQUARE, keep_aspect_ratio=True, ensure_multiple_of=8
    ).save_pretrained(folder)


def glpn(folder: Path) -> None:
    config = transformers.GLPNConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
    )
    transformers.GLPNForDepthEstimation(config).save_pretrained(folder)
    transformers.GLPNImageProcessorPil(size_divisor=SIZE).save_pretrained(folder)


def zoedepth(folder: Path, *domains: str) -> None:
    backbone = transformers.BeitConfig(
        **{**VISION, "num_hidden_layers": 4},
        use_relative_position_bias=True,
        reshape_hidden_states=False,
        out_indices=[1, 2, 3, 4],
    )
    heads = [{"n_bins": 8, "min_depth": 0.1, "max_depth": 10.0}]
    if domains:
        heads = [
            {"name": name, "n_bins": 8, "min_depth": 0.1, "max_depth": 10.0 * at}
            for at, name in enumerate(domains, 1)
        ]
    config = transformers.ZoeDepthConfig(
        backbone_config=backbone,
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        bottleneck_features=16,
        num_relative_features=8,
        bin_embedding_dim=8,
        bin_configurations=heads,
        num_patch_transformer_layers=4,
        patch_transformer_hidden_size=128,
        patch_transformer_intermediate_size=16,
        patch_transformer_num_attention_heads=2,
        initializer_range=0.5,
    )
    transformers.ZoeDepthForDepthEstimation(config).save_pretrained(folder)
    transformers.ZoeDepthImageProcessorPil(size=SQUARE, ensure_multiple_of=8).save_pretrained(
        folder
    )


class Torchvision:
    """Stand-in for the parts of torchvision that transformers' last step for ZoeDepth uses.
    torchvision is not installed.
    """

    class InterpolationMode:
        BICUBIC = "bicubic"

    @staticmethod
    def resize(depth: Any, size: list[int], interpolation: str, *, antialias: bool) -> Any:
        resized = torch.nn.functional.interpolate(
            depth[None], size, mode=interpolation, antialias=antialias
        )
        return resized[0]


FAMILIES = [dpt, depth_anything, glpn, zoedepth]


@pytest.fixture(scope="module", autouse=True)
def torchvision() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_processing_pil_zoedepth, "tvF", Torchvision, raising=False)
        yield


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda one: one.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("depth-estimation", folder)
    yield local, transformers.pipeline("depth-estimation", model=str(folder), device="cpu")
    local.close()


def same(answer: Any, picture: Any, pipe: Any) -> None:
    expected = pipe(picture)
    ours, theirs = numpy.array(grey(answer["depth"])), numpy.asarray(expected["depth"])
    assert ours.shape == theirs.shape == (picture.height, picture.width)
    assert (ours.min(), ours.max()) == (0, 255)
    # A value between two of the 256 steps may be rounded to either.
    assert abs(ours.astype(int) - theirs.astype(int)).max() <= 1
    if "predicted_depth" in answer:
        equal(answer["predicted_depth"], expected["predicted_depth"].tolist())


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for picture in IMAGES:
            answer = local.ask({"inputs": image_media(picture)})
            assert set(answer) == {"depth"}
            same(answer, picture, pipe)

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        images = [image_media(picture) for picture in IMAGES]
        local.batches.clear()
        for answer in local.ask_together([{"inputs": images}] * 2):
            for picture, depth in zip(IMAGES, answer, strict=True):
                same(depth, picture, pipe)
        assert max(local.batches) > 1

    def test_return_values(self, case: Any) -> None:
        local, pipe = case
        answer = local.ask({"inputs": image_media(IMAGES[2]), "return_values": True})
        assert set(answer) == {"depth", "predicted_depth"}
        same(answer, IMAGES[2], pipe)


def test_each_image_has_the_head_of_its_own_domain(tmp_path: Path) -> None:
    """Each image uses the head of its own domain. The original model chooses one head per batch by
    vote.
    """
    transformers.set_seed(3)
    zoedepth(tmp_path, "indoor", "outdoor")
    local = Local("depth-estimation", tmp_path)
    pipe = transformers.pipeline("depth-estimation", model=str(tmp_path), device="cpu")
    images = [image(seed, (64, 64)) for seed in range(8)]
    domains = {
        pipe.forward(pipe.preprocess(one))["domain_logits"].argmax().item() for one in images
    }
    assert len(domains) == 2
    body = {"inputs": [image_media(one) for one in images], "return_values": True}
    for answer in local.ask_together([body] * 2):
        for picture, one in zip(images, answer, strict=True):
            same(one, picture, pipe)
    assert set(local.batches) == {1}
    local.close()


def test_too_many_values(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    local, _ = case
    monkeypatch.setattr(depth_estimation, "MAX_VALUES", 100)
    with pytest.raises(RefusedError) as refused:
        local.ask({"inputs": [image_media(IMAGES[0])], "return_values": True})
    assert refused.value.failure.param == "inputs[0]"
    assert "more than 100 pixels" in refused.value.failure.message


def test_one_depth_everywhere_is_black() -> None:
    assert depth_estimation._bright(torch.full((2, 3), 4.0)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_nearest_and_farthest_take_the_whole_range() -> None:
    assert depth_estimation._bright(torch.tensor([[2.0, 4.0, 3.0]])).tolist() == [[0, 255, 127]]


@pytest.mark.parametrize("wrong", [{"return_values": "perhaps"}, {"top_k": 1}], ids=str)
def test_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        DepthEstimationRequest.model_validate({"inputs": "aGk=", **wrong})
    assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)
