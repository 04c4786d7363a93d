"""Mask generation with SAM 2 against the model itself, called with our own processor.

transformers' pipeline needs torchvision here. For images that are not square, it places points
differently from its own processor.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.sam.image_processing_pil_sam import _generate_per_layer_crops

from stoker.inspection.config import find_pipeline
from stoker.models.tasks.mask_generation import suppressed
from stoker.models.tasks.registry import PIPELINES
from tests.support.compare import equal
from tests.support.local import Local
from tests.support.media import image, image_media
from tests.support.vision import grey

PIPELINE = "mask-generation"
SIZE = 64
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
IMAGES = [image(0), image(1, (40, 90)), image(2, (60, 60))]
LOOSE = {
    "points_per_crop": 4,
    "pred_iou_thresh": 0.0,
    "stability_score_thresh": 0.0,
    "crops_nms_thresh": 0.9,
}
"""Options with which an untrained model finds masks."""

PARTS: dict[str, Any] = {
    "vision_config": {
        "backbone_config": {
            "model_type": "sam2_hiera_det_model",
            "hidden_size": 8,
            "image_size": [SIZE, SIZE],
            "blocks_per_stage": [1, 1, 2, 1],
            "embed_dim_per_stage": [8, 16, 32, 64],
            "num_attention_heads_per_stage": [1, 1, 2, 2],
            "window_size_per_stage": [8, 4, 4, 2],
            "global_attention_blocks": [3],
            "window_positional_embedding_background_size": [2, 2],
        },
        "backbone_channel_list": [64, 32, 16, 8],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        "fpn_hidden_size": 32,
    },
    "prompt_encoder_config": {"hidden_size": 32, "image_size": SIZE, "mask_input_channels": 4},
    "mask_decoder_config": {
        "hidden_size": 32,
        "mlp_dim": 32,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    },
}


def sam2(folder: Path) -> None:
    _save(transformers.Sam2Model(transformers.Sam2Config(**PARTS)), folder)


def sam2_video(folder: Path) -> None:
    """Saves the model as Meta did, with the parts that track objects through a video."""
    config = transformers.Sam2VideoConfig(
        **PARTS,
        image_size=SIZE,
        memory_attention_hidden_size=32,
        memory_attention_num_layers=1,
        memory_attention_feed_forward_hidden_size=32,
        memory_attention_rope_feat_sizes=[4, 4],
        memory_encoder_hidden_size=32,
        memory_encoder_output_channels=16,
        mask_downsampler_embed_dim=32,
        memory_fuser_embed_dim=32,
        memory_fuser_intermediate_dim=32,
    )
    _save(transformers.Sam2VideoModel(config), folder)


def _save(model: Any, folder: Path) -> None:
    with torch.no_grad():
        # Without scaling, all points would belong to one mask.
        for weight in model.mask_decoder.parameters():
            weight.mul_(10 if weight.dim() > 1 else 1)
    model.save_pretrained(folder)
    # The contents that Sam2ImageProcessor writes.
    processor = {
        "image_processor_type": "Sam2ImageProcessorFast",
        "size": {"height": SIZE, "width": SIZE},
        "mask_size": {"height": 16, "width": 16},
        "image_mean": MEAN,
        "image_std": DEVIATION,
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


Expected = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", params=[sam2, sam2_video], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Expected]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local(PIPELINE, folder)
    model = transformers.Sam2Model.from_pretrained(folder).eval()

    def masks(picture: Image.Image, **options: Any) -> dict[str, Any]:
        return generated(model, picture, **options)

    yield local, masks
    local.close()


@torch.inference_mode()
def generated(
    model: Any,
    picture: Image.Image,
    *,
    points_per_crop: int,
    pred_iou_thresh: float = 0.88,
    stability_score_thresh: float = 0.95,
    stability_score_offset: float = 1,
    mask_threshold: float = 0,
    crops_nms_thresh: float = 0.7,
    crops_n_layers: int = 0,
    crop_overlap_ratio: float = 512 / 1500,
    points_per_batch: int = 64,
) -> dict[str, Any]:
    """Generates masks of a grid of points in each crop. The points are in pixels of the crop."""
    boxes, _ = _generate_per_layer_crops(crops_n_layers, crop_overlap_ratio, picture.size[::-1])
    candidates: list[tuple[float, Any, list[int]]] = []
    for left, top, right, bottom in boxes:
        crop = picture.crop((left, top, right, bottom))
        steps = [(number + 0.5) / points_per_crop for number in range(points_per_crop)]
        points = [[x * crop.width, y * crop.height] for y in steps for x in steps]
        outputs = model(
            pixel_values=seen(crop),
            input_points=normalized(points, crop)[None, :, None],
            input_labels=torch.ones(1, len(points), 1, dtype=torch.int64),
        )
        logits = torch.nn.functional.interpolate(
            outputs.pred_masks[0], crop.size[::-1], mode="bilinear", align_corners=False
        )
        for mask, score in zip(logits.flatten(0, 1), outputs.iou_scores.flatten(), strict=True):
            inner, outer = (
                (mask > mask_threshold + offset).sum()
                for offset in (stability_score_offset, -stability_score_offset)
            )
            kept = (not pred_iou_thresh or score > pred_iou_thresh) and (
                not stability_score_thresh or inner / outer > stability_score_thresh
            )
            box = box_of(mask > mask_threshold)
            if kept and not cut_off(box, (left, top, right, bottom), picture):
                whole = numpy.zeros(picture.size[::-1], bool)
                whole[top:bottom, left:right] = mask > mask_threshold
                shifted = [box[0] + left, box[1] + top, box[2] + left, box[3] + top]
                candidates.append((score.item(), whole, shifted))
    kept = suppressed(
        torch.tensor([box for _, _, box in candidates]).float().reshape(-1, 4),
        torch.tensor([score for score, _, _ in candidates]),
        crops_nms_thresh,
    )
    return {
        "masks": [255 * candidates[index][1].astype(numpy.uint8) for index in kept],
        "scores": [candidates[index][0] for index in kept],
    }


def seen(crop: Image.Image) -> torch.Tensor:
    """Returns the model's input: the whole crop, stretched to a square."""
    pixels = numpy.asarray(crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)) / 255
    channels = ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)
    return torch.tensor(channels[None], dtype=torch.float32)


def normalized(points: list[list[float]], crop: Image.Image) -> torch.Tensor:
    """Scales each axis separately, like Sam2Processor."""
    return torch.tensor([[x * SIZE / crop.width, y * SIZE / crop.height] for x, y in points])


def box_of(mask: torch.Tensor) -> list[int]:
    rows, columns = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
    if not len(rows):
        return [0, 0, 0, 0]
    return [int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])]


def cut_off(box: list[int], crop: tuple[int, ...], picture: Image.Image) -> bool:
    """Returns True if a mask reaches an edge of its crop that is not an edge of the image."""
    left, top = crop[:2]
    placed = [box[0] + left, box[1] + top, box[2] + left, box[3] + top]
    whole = (0, 0, *picture.size)
    return any(
        abs(place - edge) <= 20 and not abs(place - outer) <= 20
        for place, edge, outer in zip(placed, crop, whole, strict=True)
    )


def same(answer: Any, expected: Any) -> None:
    equal(answer["scores"], expected["scores"])
    assert len(answer["masks"]) == len(expected["masks"])
    for ours, theirs in zip(answer["masks"], expected["masks"], strict=True):
        assert numpy.mean(numpy.array(grey(ours)) != theirs) < 0.01


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, masks = case
        for picture in IMAGES:
            answer = local.ask({"inputs": image_media(picture), **LOOSE})
            assert answer["masks"]
            same(answer, masks(picture, **LOOSE))

    def test_beside_others(self, case: Any) -> None:
        local, masks = case
        images = [image_media(picture) for picture in IMAGES]
        for answer in local.ask_together([{"inputs": images, **LOOSE}] * 2):
            for picture, result in zip(IMAGES, answer, strict=True):
                same(result, masks(picture, **LOOSE))

    @pytest.mark.parametrize(
        "more",
        [
            {"points_per_batch": 5},
            {"points_per_crop": 3},
            {"crops_n_layers": 1, "crop_overlap_ratio": 0.2},
            {"pred_iou_thresh": 0.515},
            {"stability_score_offset": 0.1, "stability_score_thresh": 0.5},
            {"mask_threshold": 0.01},
            {"crops_nms_thresh": 0.2},
        ],
        ids=str,
    )
    def test_parameters(self, case: Any, more: dict[str, Any]) -> None:
        local, masks = case
        answer = local.ask({"inputs": image_media(IMAGES[0]), **LOOSE, **more})
        assert answer["masks"]
        same(answer, masks(IMAGES[0], **{**LOOSE, **more}))

    def test_points_are_spread_over_all_of_the_image(self, case: Any) -> None:
        """The points cover the whole image. SAM's grid would omit more than half of the model's
        input for this image.
        """
        local, _ = case
        processor = local.stages._parts["image_processor"]
        _, points, _, _ = processor.generate_crop_boxes(IMAGES[1], SIZE, points_per_crop=2)
        quarters = [SIZE / 4, 3 * SIZE / 4]
        assert points[0, :, 0].tolist() == [[x, y] for y in quarters for x in quarters]


@pytest.mark.parametrize("architecture", ["Sam2Model", "Sam2VideoModel"])
def test_pushed_without_a_pipeline(architecture: str) -> None:
    assert find_pipeline(architecture, None, (), PIPELINES) == PIPELINE
