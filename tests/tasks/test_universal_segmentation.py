"""OneFormer and EoMT against their own processors and models.

transformers' pipeline tokenizes OneFormer's task differently from its processor. It cannot request
instances from EoMT.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

from stoker.inspection import FailureCode, InspectionError, inspect
from stoker.inspection.config import find_pipeline
from stoker.models.tasks.registry import PIPELINES
from tests.inspection.builders import FolderFiles
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import clip_tokenizer, grey

PIPELINE = "image-segmentation"
SIZE = 64
# The first and the last have the same shape, the second is upright, the third square.
IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32)), image(3)]
LOOSE = {"threshold": 0.1, "mask_threshold": 0.1, "overlap_mask_area_threshold": 0.0}
"""Thresholds with which untrained models find segments."""
WORDS = 40

Segments = list[dict[str, Any]]
Expected = Callable[..., Segments]


def oneformer(folder: Path) -> Expected:
    backbone = transformers.SwinConfig(
        image_size=SIZE,
        patch_size=4,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.OneFormerConfig(
        backbone_config=backbone,
        num_queries=6,
        task_seq_len=WORDS,
        conv_dim=32,
        mask_dim=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        dim_feedforward=16,
        num_attention_heads=2,
        query_dec_layers=1,
        num_labels=5,
    )
    save(transformers.OneFormerForUniversalSegmentation(config), folder)
    processor = transformers.OneFormerImageProcessorPil(
        size={"shortest_edge": SIZE, "longest_edge": 2 * SIZE}
    )
    processor.save_pretrained(folder)
    clip_tokenizer(WORDS).save_pretrained(folder)
    # As on the hub, the config names a file of another repository that only training reads.
    path = folder / "preprocessor_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"class_info_file": "ade20k_panoptic.json"})
    )
    model = transformers.OneFormerForUniversalSegmentation.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # Otherwise the pipeline's error would make no difference.
    assert tokenizer.pad_token_id != 0
    processor.class_info_file = ""
    whole: Any = transformers.OneFormerProcessor(processor, tokenizer, task_seq_length=WORDS)

    def segment(picture: Any, subtask: str = "panoptic", **thresholds: float) -> Segments:
        inputs = whole(picture, [subtask], return_tensors="pt")
        with torch.inference_mode():
            outputs = model(**inputs)
        return read(whole, outputs, picture, subtask, {**DEFAULTS, **thresholds}, model.config)

    return segment


def eomt(folder: Path) -> Expected:
    return _eomt(folder, "Eomt", mlp_ratio=2)


def eomt_dinov3(folder: Path) -> Expected:
    return _eomt(folder, "EomtDinov3", intermediate_size=64)


def eomt_of_regions(folder: Path) -> Expected:
    """Saves a model that processes an image in square parts."""
    return _eomt(folder, "Eomt", mlp_ratio=2, split=True)


def _eomt(folder: Path, name: str, *, split: bool = False, **more: Any) -> Expected:
    config = getattr(transformers, f"{name}Config")(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=8,
        num_blocks=2,
        num_upscale_blocks=1,
        num_queries=6,
        num_labels=5,
        **more,
    )
    save(getattr(transformers, f"{name}ForUniversalSegmentation")(config), folder)
    longest = None if split else SIZE
    processor: Any = transformers.EomtImageProcessorPil(
        size={"shortest_edge": SIZE, "longest_edge": longest},
        do_split_image=split,
        do_pad=not split,
    )
    processor.save_pretrained(folder)
    model = transformers.AutoModelForUniversalSegmentation.from_pretrained(folder).eval()

    def segment(
        picture: Any, subtask: str = "semantic" if split else "panoptic", **thresholds: float
    ) -> Segments:
        inputs = processor(images=picture, return_tensors="pt")
        with torch.inference_mode():
            outputs = model(**inputs)
        options = {**DEFAULTS, **thresholds}
        if subtask == "instance":
            options = {"threshold": options["threshold"]}
        return read(processor, outputs, picture, subtask, options, model.config)

    return segment


DEFAULTS = {"threshold": 0.9, "mask_threshold": 0.5, "overlap_mask_area_threshold": 0.5}
"""Defaults of the endpoint, which equal those of the pipeline."""


def read(
    processor: Any,
    outputs: Any,
    picture: Any,
    subtask: str,
    thresholds: dict[str, float],
    config: Any,
) -> Segments:
    processor = getattr(processor, "image_processor", processor)
    method = getattr(processor, f"post_process_{subtask}_segmentation")
    options = {} if subtask == "semantic" else thresholds
    (result,) = method(outputs, target_sizes=[(picture.height, picture.width)], **options)
    if subtask == "semantic":
        return [
            {"label": config.id2label[label], "score": 1.0, "mask": (result == label).numpy()}
            for label in result.unique().tolist()
        ]
    return [
        {
            "label": config.id2label[segment["label_id"]],
            "score": segment["score"],
            "mask": (result["segmentation"] == segment["id"]).numpy(),
        }
        for segment in result["segments_info"]
    ]


def save(model: Any, folder: Path) -> None:
    """Saves a model with queries and classes scaled further apart than random ones, so that masks
    differ.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "quer" in name or "class_" in name:
                parameter.mul_(20)
            if "layer_scale" in name:
                parameter.fill_(1)
    model.save_pretrained(folder)


SUBTASKS = {
    oneformer: ["panoptic", "instance", "semantic"],
    eomt: ["panoptic", "instance"],
    eomt_dinov3: ["panoptic", "instance"],
    eomt_of_regions: ["semantic"],
}


@pytest.fixture(scope="module", params=SUBTASKS, ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    segment = request.param(folder)
    local = Local(PIPELINE, folder)
    yield local, segment, SUBTASKS[request.param]
    local.close()


def same(answer: Any, expected: Segments) -> None:
    assert answer["labels"] == [segment["label"] for segment in expected]
    equal(answer["scores"], [segment["score"] for segment in expected])
    assert len(answer["masks"]) == len(expected)
    for mask, segment in zip(answer["masks"], expected, strict=True):
        ours, theirs = numpy.array(grey(mask)), 255 * segment["mask"].astype(int)
        assert ours.shape == theirs.shape
        # A pixel may be equally close to two segments.
        assert numpy.mean(ours != theirs) < 0.01


def loose(subtask: str, local: Local) -> dict[str, float]:
    if subtask == "semantic":
        return {}
    of_eomt = local.model.config.model_type.startswith("eomt")
    return {"threshold": 0.1} if of_eomt and subtask == "instance" else LOOSE


class TestParity:
    def test_subtasks(self, case: Any) -> None:
        local, segment, subtasks = case
        answers: list[str] = []
        for subtask in subtasks:
            options = loose(subtask, local)
            mask_count = 0
            for picture in IMAGES:
                answer = local.ask({"inputs": image_media(picture), "subtask": subtask, **options})
                same(answer, segment(picture, subtask, **options))
                mask_count += len(answer["masks"])
                answers.append(str(answer))
            assert mask_count
        # The answers must differ, or this test would show little.
        assert len(set(answers)) > len(subtasks)

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, segment, subtasks = case
        images = [image_media(picture) for picture in IMAGES]
        bodies = [
            {"inputs": images, "subtask": subtask, **loose(subtask, local)} for subtask in subtasks
        ] * 2
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        for body, answer in zip(bodies, answers, strict=True):
            options = {name: value for name, value in body.items() if name != "inputs"}
            for picture, segments in zip(IMAGES, answer, strict=True):
                same(segments, segment(picture, **options))

    def test_defaults(self, case: Any) -> None:
        local, segment, _ = case
        same(local.ask({"inputs": image_media(IMAGES[1])}), segment(IMAGES[1]))


class TestSubtasks:
    def test_one_that_the_model_lacks(self, case: Any) -> None:
        local, _, subtasks = case
        for subtask in {"panoptic", "instance", "semantic"} - set(subtasks):
            with pytest.raises(RefusedError, match=f"does not support '{subtask}'") as refused:
                local.ask({"inputs": image_media(IMAGES[0]), "subtask": subtask})
            assert refused.value.failure.param == "subtask"

    def test_thresholds_that_it_does_not_take(self, case: Any) -> None:
        local, _, subtasks = case
        body = {"inputs": image_media(IMAGES[0]), "mask_threshold": 0.4}
        unfit = {"semantic"} | ({"instance"} if len(subtasks) == 2 else set())
        for subtask in unfit & set(subtasks):
            with pytest.raises(RefusedError, match="is not for") as refused:
                local.ask({**body, "subtask": subtask})
            assert refused.value.failure.param == "mask_threshold"


class TestPush:
    @pytest.mark.parametrize("name", ["OneFormer", "Eomt", "EomtDinov3"])
    def test_without_a_pipeline(self, name: str) -> None:
        pipeline = find_pipeline(f"{name}ForUniversalSegmentation", None, (), PIPELINES)
        assert pipeline == PIPELINE

    def test_oneformer_without_its_tokenizer(self, tmp_path: Path) -> None:
        oneformer(tmp_path)
        assert inspect(FolderFiles(tmp_path), None, PIPELINES).pipeline == PIPELINE
        for name in ("vocab.json", "merges.txt", "tokenizer.json"):
            (tmp_path / name).unlink(missing_ok=True)
        with pytest.raises(InspectionError, match="OneFormer") as caught:
            inspect(FolderFiles(tmp_path), None, PIPELINES)
        assert caught.value.code is FailureCode.MISSING_TOKENIZER
