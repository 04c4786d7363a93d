"""Pix2Struct's captions against its image processor and its own `generate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.inspection import FailureCode, InspectionError, inspect
from stoker.models.tasks.registry import PIPELINES
from tests.inspection.builders import FolderFiles
from tests.support.language import tokenizer
from tests.support.local import Local
from tests.support.media import image, image_media

PATCHES = 24
PICTURES = [image(0), image(1, (40, 90)), image(2, (32, 32)), image(3)]
MEDIA = [image_media(picture) for picture in PICTURES]
CAPTIONS = "image-to-text"


def pix2struct(folder: Path, *, asks: bool = False) -> None:
    words = tokenizer("t5")
    ids = {
        "pad_token_id": words.pad_token_id,
        "eos_token_id": words.eos_token_id,
        "decoder_start_token_id": words.pad_token_id,
    }
    sizes: dict[str, Any] = {"hidden_size": 32, "d_kv": 16, "d_ff": 64}
    config = transformers.Pix2StructConfig(
        text_config={
            **{**sizes, **ids, "vocab_size": len(words)},
            **{"num_layers": 1, "num_heads": 2, "is_decoder": True},
        },
        vision_config={
            **sizes,
            "patch_embed_hidden_size": 3 * 8 * 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "seq_len": PATCHES,
            "initializer_range": 0.3,
        },
        is_vqa=asks,
        **ids,
    )
    model = transformers.Pix2StructForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "encoder" in name:
                weight.normal_(std=0.3)
    model.save_pretrained(folder)
    transformers.Pix2StructImageProcessorPil(
        patch_size={"height": 8, "width": 8}, max_patches=PATCHES, is_vqa=asks
    ).save_pretrained(folder)
    words.save_pretrained(folder)


@pytest.fixture(scope="module")
def case(tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp("pix2struct")
    transformers.set_seed(0)
    pix2struct(folder)
    local = Local(CAPTIONS, folder)
    model = transformers.Pix2StructForConditionalGeneration.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    words = transformers.AutoTokenizer.from_pretrained(folder)

    def caption(picture: Any, **options: Any) -> list[dict[str, str]]:
        with torch.inference_mode():
            tokens = model.generate(
                **processor(images=picture, return_tensors="pt"),
                **{"max_new_tokens": 12, **options},
            )
        text = words.decode(tokens[0], skip_special_tokens=True)
        return [{"generated_text": text.strip()}]

    yield local, caption
    local.close()


def test_alone(case: Any) -> None:
    local, caption = case
    answers = [local.ask({"inputs": media, "max_new_tokens": 12}) for media in MEDIA]
    assert answers == [caption(picture) for picture in PICTURES]
    # The answers must differ, or this test would show little.
    assert len({str(answer) for answer in answers}) > 1


def test_images_of_different_shapes_together(case: Any) -> None:
    local, caption = case
    local.batches.clear()
    for answer in local.ask_together([{"inputs": MEDIA, "max_new_tokens": 12}] * 2):
        assert answer == [caption(picture) for picture in PICTURES]
    assert max(local.batches) > 1


@pytest.mark.parametrize("options", [{"max_new_tokens": 3}, {"num_beams": 3, "min_new_tokens": 5}])
def test_parameters(case: Any, options: dict[str, int]) -> None:
    local, caption = case
    parameters = {"max_new_tokens": 12, **options}
    assert local.ask({"inputs": MEDIA[1], "generate_kwargs": parameters}) == caption(
        PICTURES[1], **options
    )


def test_probe(case: Any) -> None:
    local, _ = case
    assert len(local.forward([local.stages.probe(16)] * 2)) == 2


def test_one_that_draws_questions_is_refused(tmp_path: Path) -> None:
    pix2struct(tmp_path, asks=True)
    for pipeline in (None, CAPTIONS):
        with pytest.raises(InspectionError, match="font") as refused:
            inspect(FolderFiles(tmp_path), pipeline, PIPELINES)
        assert refused.value.code is FailureCode.UNSUPPORTED_MODEL


def test_one_that_captions_is_taken(tmp_path: Path) -> None:
    pix2struct(tmp_path)
    assert inspect(FolderFiles(tmp_path), None, PIPELINES).pipeline == CAPTIONS
