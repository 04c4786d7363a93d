"""Image to text against each model's own `generate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.image_to_text import ImageToTextRequest
from tests.support import multimodal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media

PICTURES = [image(0), image(1, (40, 90)), image(2, (32, 32)), image(3), image(4)]
MEDIA = [image_media(picture) for picture in PICTURES]


def blip(folder: Path) -> None:
    multimodal.blip(folder, "BlipForConditionalGeneration")


@pytest.fixture(
    scope="module",
    params=[blip, multimodal.git, multimodal.vit_gpt2],
    ids=lambda family: family.__name__,
)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("image-to-text", folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def caption(picture: Any, **options: Any) -> list[dict[str, str]]:
        pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
        options.setdefault("max_new_tokens", multimodal.POSITIONS)
        with torch.inference_mode():
            tokens = model.generate(pixel_values=pixels, **options)
        text = tokenizer.decode(tokens[0], skip_special_tokens=True)
        return [{"generated_text": text.strip()}]

    yield local, caption
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, caption = case
        answers = [local.ask({"inputs": media}) for media in MEDIA]
        assert answers == [caption(picture) for picture in PICTURES]
        # The texts must differ, or this test would show little.
        texts = {answer[0]["generated_text"] for answer in answers}
        assert len(texts) > 2
        assert len({len(text.split()) for text in texts}) > 1

    def test_in_a_batch_of_different_images(self, case: Any) -> None:
        local, caption = case
        local.batches.clear()
        for answer in local.ask_together([{"inputs": MEDIA}] * 2):
            assert answer == [caption(picture) for picture in PICTURES]
        assert max(local.batches) > 1

    @pytest.mark.parametrize(
        "parameters",
        [
            {"max_new_tokens": 1},
            {"max_new_tokens": 5},
            {"generate_kwargs": {"num_beams": 3, "max_new_tokens": 9}},
            {"max_new_tokens": 9, "generate_kwargs": {"repetition_penalty": 5.0}},
            {"max_new_tokens": 9, "generate_kwargs": {"min_new_tokens": 9}},
        ],
        ids=str,
    )
    def test_parameters(self, case: Any, parameters: dict[str, Any]) -> None:
        local, caption = case
        options = {**parameters, **parameters.get("generate_kwargs", {})}
        options.pop("generate_kwargs", None)
        answer = local.ask({"inputs": MEDIA, **parameters})
        assert answer == [caption(picture, **options) for picture in PICTURES]

    def test_other_options_share_no_batch(self, case: Any) -> None:
        local, caption = case
        bodies = [{"inputs": MEDIA, "max_new_tokens": n} for n in (2, 4)]
        answers = local.ask_together(bodies)
        for count, answer in zip((2, 4), answers, strict=True):
            assert answer == [caption(picture, max_new_tokens=count) for picture in PICTURES]

    def test_a_seed_repeats(self, case: Any) -> None:
        local, _ = case
        sampling = {"do_sample": True, "temperature": 3.0, "seed": 5}
        first, second = (
            local.ask({"inputs": MEDIA[:2], "generate_kwargs": sampling}) for _ in range(2)
        )
        assert first == second

    def test_probe(self, case: Any) -> None:
        local, _ = case
        assert len(local.forward([local.stages.probe(32)] * 2)) == 2


class TestRefusals:
    @pytest.mark.parametrize("content", [b"no image", b""], ids=["not an image", "empty"])
    def test_not_an_image(self, case: Any, content: bytes) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"inputs": [MEDIA[0], Media("image", content=content)]})
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "inputs[1]"

    def test_more_tokens_than_the_model_can(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError, match="at most") as refused:
            local.ask({"inputs": MEDIA[0], "max_new_tokens": multimodal.POSITIONS + 9})
        assert refused.value.failure.param == "max_new_tokens"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"inputs": []},
            {"inputs": 3},
            {"inputs": "x", "max_new_tokens": 0},
            {"inputs": "x", "max_new_tokens": 1_000_000},
            {"inputs": "x", "generate_kwargs": {"num_beams": 1000}},
            {"inputs": "x", "generate_kwargs": {"max_length": 3}},
            {"inputs": "x", "generate_kwargs": {"stopping_criteria": []}},
            {"inputs": "x", "prompt": ""},
        ],
        ids=str,
    )
    def test_request(self, body: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            ImageToTextRequest.model_validate(body)
