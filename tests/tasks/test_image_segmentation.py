"""Image segmentation against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.models.tasks.image_segmentation import ImageSegmentationRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import SIZE, SQUARE, grey, resnet

IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32)), image(3)]
ALL_THREE = ["panoptic", "instance", "semantic"]
LOOSE = {"threshold": 0.1, "mask_threshold": 0.1, "overlap_mask_area_threshold": 0.0}
"""Thresholds with which untrained models find segments."""
LARGER = 2 * SIZE
"""Image size in pixels that leaves more than one pixel after the last of five halvings."""
LARGER_SQUARE = {"height": LARGER, "width": LARGER}
DETR = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 6,
}
SWIN = {
    "image_size": LARGER,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}


def detr(folder: Path) -> None:
    config = transformers.DetrConfig(
        backbone_config=resnet(), use_timm_backbone=False, num_labels=5, **DETR
    )
    save(transformers.DetrForSegmentation(config), folder)
    size = {"shortest_edge": SIZE, "longest_edge": 2 * SIZE}
    transformers.DetrImageProcessorPil(size=size).save_pretrained(folder)


def mask2former(folder: Path) -> None:
    config = transformers.Mask2FormerConfig(
        backbone_config=transformers.SwinConfig(**SWIN),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        dim_feedforward=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=6,
        num_labels=5,
    )
    save(transformers.Mask2FormerForUniversalSegmentation(config), folder)
    transformers.Mask2FormerImageProcessorPil(size=LARGER_SQUARE).save_pretrained(folder)


def maskformer(folder: Path) -> None:
    config = transformers.MaskFormerConfig(
        backbone_config=transformers.SwinConfig(**SWIN),
        decoder_config=transformers.DetrConfig(
            backbone_config=resnet(), use_timm_backbone=False, **DETR
        ),
        fpn_feature_size=32,
        mask_feature_size=32,
        num_labels=5,
    )
    save(transformers.MaskFormerForInstanceSegmentation(config), folder)
    transformers.MaskFormerImageProcessorPil(size=LARGER_SQUARE).save_pretrained(folder)


def segformer(folder: Path) -> None:
    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        num_labels=5,
    )
    save(transformers.SegformerForSemanticSegmentation(config), folder)
    transformers.SegformerImageProcessorPil(size=SQUARE).save_pretrained(folder)


def save(model: Any, folder: Path) -> None:
    """Saves a model with queries and classes scaled further apart than random ones, so that masks
    differ.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "quer" in name or "class_" in name:
                parameter.mul_(20)
    model.save_pretrained(folder)


@pytest.fixture(
    scope="module",
    params=[detr, mask2former, maskformer, segformer],
    ids=lambda family: family.__name__,
)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("image-segmentation", folder)
    pipe = transformers.pipeline("image-segmentation", model=str(folder), device="cpu")
    yield local, pipe, ["semantic"] if request.param is segformer else ALL_THREE
    local.close()


def same(answer: Any, expected: Any, size: tuple[int, int]) -> None:
    assert answer["labels"] == [segment["label"] for segment in expected]
    scores = [1.0 if segment["score"] is None else segment["score"] for segment in expected]
    equal(answer["scores"], scores)
    assert len(answer["masks"]) == len(expected)
    for mask, segment in zip(answer["masks"], expected, strict=True):
        ours, theirs = numpy.array(grey(mask)), numpy.asarray(segment["mask"])
        assert ours.shape == theirs.shape == (size[1], size[0])
        assert set(numpy.unique(ours)) <= {0, 255}
        # A pixel may be equally close to two segments.
        assert numpy.mean(ours != theirs) < 0.01


class TestParity:
    @pytest.mark.parametrize("subtask", ALL_THREE)
    def test_subtasks(self, case: Any, subtask: str) -> None:
        local, pipe, subtasks = case
        if subtask not in subtasks:
            pytest.skip("this family does not know it")
        options = {"subtask": subtask, **({} if subtask == "semantic" else LOOSE)}
        mask_count = 0
        for picture in IMAGES:
            answer = local.ask({"inputs": image_media(picture), **options})
            same(answer, pipe(picture, **options), picture.size)
            mask_count += len(answer["masks"])
        assert mask_count

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe, subtasks = case
        options = {"subtask": subtasks[0], **({} if subtasks == ["semantic"] else LOOSE)}
        images = [image_media(picture) for picture in IMAGES]
        local.batches.clear()
        answers = local.ask_together([{"inputs": images, **options}] * 2)
        assert max(local.batches) > 1
        for answer in answers:
            for picture, segments in zip(IMAGES, answer, strict=True):
                same(segments, pipe(picture, **options), picture.size)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"threshold": 0.15},
            {"threshold": 0.1, "mask_threshold": 0.3},
            {**LOOSE, "overlap_mask_area_threshold": 0.9},
        ],
        ids=str,
    )
    def test_thresholds(self, case: Any, options: dict[str, float]) -> None:
        local, pipe, subtasks = case
        if options and subtasks == ["semantic"]:
            pytest.skip("this family has no scores")
        answer = local.ask({"inputs": image_media(IMAGES[0]), **options})
        same(answer, pipe(IMAGES[0], **options), IMAGES[0].size)


class TestSubtask:
    def test_semantic_masks_cover_the_image_once(self, case: Any) -> None:
        local, _, _ = case
        answer = local.ask({"inputs": image_media(IMAGES[1]), "subtask": "semantic"})
        covered = sum(numpy.array(grey(mask)).astype(int) for mask in answer["masks"])
        assert (covered == 255).all()
        assert answer["scores"] == [1.0] * len(answer["masks"])

    def test_one_that_the_model_lacks(self, case: Any) -> None:
        local, _, subtasks = case
        if subtasks == ALL_THREE:
            pytest.skip("this family has them all")
        with pytest.raises(RefusedError) as refused:
            local.ask({"inputs": image_media(IMAGES[0]), "subtask": "panoptic"})
        assert refused.value.failure.param == "subtask"
        expected = "This model does not support 'panoptic'. Use one of semantic."
        assert refused.value.failure.message == expected

    def test_thresholds_are_not_for_semantic(self, case: Any) -> None:
        local, _, _ = case
        body = {"inputs": [image_media(IMAGES[0])], "subtask": "semantic", "mask_threshold": 0.5}
        with pytest.raises(RefusedError) as refused:
            local.ask(body)
        assert refused.value.failure.param == "mask_threshold"


@pytest.mark.parametrize(
    "wrong",
    [
        {"subtask": "other"},
        {"threshold": 1.5},
        {"mask_threshold": -1},
        {"overlap_mask_area_threshold": "much"},
        {"top_k": 1},
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ImageSegmentationRequest.model_validate({"inputs": "aGk=", **wrong})
    assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)
