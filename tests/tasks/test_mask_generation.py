"""Mask generation against the transformers pipeline."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.models.tasks import mask_generation
from stoker.models.tasks.mask_generation import MaskGenerationRequest, suppressed
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import SIZE, grey

IMAGES = [image(0), image(1, (40, 90))]
LOOSE = {
    "points_per_crop": 4,
    "pred_iou_thresh": 0.0,
    "stability_score_thresh": 0.0,
    "crops_nms_thresh": 0.9,
}
"""Options with which an untrained model finds masks."""
PROCESSOR = {
    "size": {"longest_edge": SIZE},
    "pad_size": {"height": SIZE, "width": SIZE},
    "mask_size": {"longest_edge": 8},
    "mask_pad_size": {"height": 8, "width": 8},
}


VISION = {
    "hidden_size": 16,
    "output_channels": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "patch_size": 4,
    "window_size": 2,
    "global_attn_indexes": [1],
    "mlp_dim": 32,
    "num_pos_feats": 8,
}
PROMPTS = {"hidden_size": 16, "image_size": SIZE, "patch_size": 4, "mask_input_channels": 4}
DECODER = {
    "hidden_size": 16,
    "mlp_dim": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "iou_head_hidden_dim": 16,
}


def sam(folder: Path) -> None:
    config = transformers.SamConfig(
        vision_config=VISION, prompt_encoder_config=PROMPTS, mask_decoder_config=DECODER
    )
    transformers.SamModel(config).save_pretrained(folder)
    transformers.SamImageProcessorPil(**PROCESSOR).save_pretrained(folder)


def sam_hq(folder: Path) -> None:
    config = transformers.SamHQConfig(
        vision_config=VISION,
        prompt_encoder_config=PROMPTS,
        mask_decoder_config={**DECODER, "vit_dim": 16},
    )
    transformers.SamHQModel(config).save_pretrained(folder)
    transformers.SamImageProcessorPil(**PROCESSOR).save_pretrained(folder)


def greedy(boxes: list[list[float]], scores: list[float], threshold: float) -> list[int]:
    """Applies non-maximum suppression by its definition, box by box."""

    def area(box: list[float]) -> float:
        return (box[2] - box[0]) * (box[3] - box[1])

    def overlap(one: list[float], other: list[float]) -> float:
        wide = min(one[2], other[2]) - max(one[0], other[0])
        high = min(one[3], other[3]) - max(one[1], other[1])
        shared = max(wide, 0) * max(high, 0)
        return shared / (area(one) + area(other) - shared) if shared else 0

    indices: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda place: -scores[place]):
        if all(overlap(boxes[index], boxes[other]) <= threshold for other in indices):
            indices.append(index)
    return indices


def without_torchvision(processor: Any) -> None:
    """Replaces the last step of the pipeline's processor with one that needs no torchvision."""

    def last_step(runs: Any, scores: Any, boxes: Any, threshold: float) -> Any:
        indices = greedy(boxes.tolist(), scores.tolist(), threshold)
        return [decoded(runs[index]) for index in indices], scores[indices], None, None

    processor.post_process_for_mask_generation = last_step


def decoded(runs: Any) -> numpy.ndarray:
    height, width = runs["size"]
    pixels: list[int] = []
    for number, count in enumerate(runs["counts"]):
        pixels += [255 * (number % 2)] * count
    return numpy.array(pixels).reshape(width, height).T


@pytest.fixture(scope="module", params=[sam, sam_hq], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("mask-generation", folder)
    pipe = transformers.pipeline("mask-generation", model=str(folder), device="cpu")
    without_torchvision(pipe.image_processor)
    yield local, pipe
    local.close()


def same(answer: Any, expected: Any) -> None:
    equal(answer["scores"], expected["scores"].tolist())
    assert len(answer["masks"]) == len(expected["masks"])
    for ours, theirs in zip(answer["masks"], expected["masks"], strict=True):
        assert numpy.mean(numpy.array(grey(ours)) != theirs) < 0.01


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for picture in IMAGES:
            answer = local.ask({"inputs": image_media(picture), **LOOSE})
            assert answer["masks"]
            same(answer, pipe(picture, **LOOSE))

    def test_beside_others(self, case: Any) -> None:
        local, pipe = case
        images = [image_media(picture) for picture in IMAGES]
        local.batches.clear()
        for answer in local.ask_together([{"inputs": images, **LOOSE}] * 2):
            for picture, masks in zip(IMAGES, answer, strict=True):
                same(masks, pipe(picture, **LOOSE))
        assert local.batches == [1] * 4

    @pytest.mark.parametrize(
        "more",
        [
            {"points_per_batch": 5},
            {"crops_n_layers": 1, "crop_overlap_ratio": 0.2},
            {"pred_iou_thresh": 0.001, "stability_score_thresh": 0.2},
            {"mask_threshold": 0.01, "stability_score_offset": 0.02},
            {"crops_nms_thresh": 0.2},
        ],
        ids=str,
    )
    def test_parameters(self, case: Any, more: dict[str, Any]) -> None:
        local, pipe = case
        answer = local.ask({"inputs": image_media(IMAGES[0]), **LOOSE, **more})
        same(answer, pipe(IMAGES[0], **{**LOOSE, **more}))

    def test_nothing_found(self, case: Any) -> None:
        local, _ = case
        body = {"inputs": image_media(IMAGES[0]), "points_per_crop": 2, "pred_iou_thresh": 1}
        assert local.ask(body) == {"masks": [], "scores": []}


class TestLimits:
    def test_large_images_take_fewer_points_at_once(
        self, case: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local, pipe = case
        monkeypatch.setattr(mask_generation, "_MAX_MASK_VALUES", 3 * 70 * 50 * 3)
        (sample,) = local.stages.preprocess(
            image_media(IMAGES[0]), {"crops_n_layers": 0, "points_per_batch": 64}
        )
        assert dict(sample.call)["points_per_batch"] == 3
        same(local.ask({"inputs": image_media(IMAGES[0]), **LOOSE}), pipe(IMAGES[0], **LOOSE))

    def test_too_small_for_its_crops(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"inputs": [image_media(image(0, (63, 90)))], "crops_n_layers": 3})
        assert refused.value.failure.param == "inputs[0]"
        assert "at least 64 pixels" in refused.value.failure.message

    @pytest.mark.parametrize(
        "wrong",
        [
            {"points_per_batch": 0},
            {"points_per_crop": 65},
            {"crops_n_layers": 4},
            {"crop_overlap_ratio": 1},
            {"pred_iou_thresh": 1.1},
            {"stability_score_thresh": -1},
            {"stability_score_offset": 101},
            {"mask_threshold": 1000},
            {"crops_nms_thresh": 2},
            {"output_rle_mask": True},
        ],
        ids=str,
    )
    def test_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as refused:
            MaskGenerationRequest.model_validate({"inputs": "aGk=", **wrong})
        assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)


class TestSuppressed:
    def test_keeps_the_best_of_overlapping_boxes(self) -> None:
        boxes = torch.tensor([[0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 5, 10.0]])
        scores = torch.tensor([0.5, 0.9, 0.1, 0.7])
        # The second box overlaps the first by 90 of 110 and the last by 40 of 110.
        assert suppressed(boxes, scores, 0.5) == [1, 3, 2]
        assert suppressed(boxes, scores, 0.3) == [1, 2]

    def test_boxes_without_an_area(self) -> None:
        boxes = torch.zeros(3, 4)
        assert suppressed(boxes, torch.tensor([0.1, 0.3, 0.2]), 0.5) == [1, 2, 0]

    def test_as_by_definition(self) -> None:
        corners = torch.rand(60, 2, 2, generator=torch.Generator().manual_seed(0)).sort(1).values
        boxes, scores = corners.flatten(1), torch.linspace(0, 1, 60)
        expected = greedy(boxes.tolist(), scores.tolist(), 0.3)
        assert suppressed(boxes, scores, 0.3) == expected
        assert 10 < len(expected) < 60

    def test_no_boxes(self) -> None:
        assert suppressed(torch.zeros(0, 4), torch.zeros(0), 0.5) == []
