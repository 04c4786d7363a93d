"""Zero-shot image classification against the transformers pipeline, family by family."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.models.stages import towers
from stoker.models.tasks.embeddings import EmbeddingsRequest
from stoker.models.tasks.zero_shot_image_classification import ZeroShotImageClassificationRequest
from stoker.wire.protocol import Work
from tests.support.compare import equal
from tests.support.language import tokenizer
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.models import word_tokenizer
from tests.support.vision import SIZE, SQUARE, TOWER, VISION, clip_text, clip_tokenizer

IMAGES = [image(0), image(1, (40, 90)), image(2, (32, 32))]
LABELS = ["cat", "a rather long dog", "a bird in a tree, far away"]


def clip(folder: Path) -> None:
    tokenizer = clip_tokenizer(77)
    config = transformers.CLIPConfig(
        text_config=clip_text(tokenizer, 77), vision_config=VISION, projection_dim=24
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessorPil(size=SQUARE, crop_size=SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def siglip(folder: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.model_input_names = ["input_ids"]
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = transformers.SiglipConfig(
        text_config={**text, "projection_size": 32}, vision_config=VISION
    )
    transformers.SiglipModel(config).save_pretrained(folder)
    transformers.SiglipImageProcessorPil(size=SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def chinese_clip(folder: Path) -> None:
    tokenizer = word_tokenizer()
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 128}
    config = transformers.ChineseCLIPConfig(
        text_config=text, vision_config=VISION, projection_dim=24
    )
    transformers.ChineseCLIPModel(config).save_pretrained(folder)
    transformers.ChineseCLIPImageProcessorPil(size=SQUARE, crop_size=SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def siglip2(folder: Path) -> None:
    """Saves a model that pads its images to a number of patches, by which they are batched."""
    tokenizer = word_tokenizer()
    tokenizer.model_input_names = ["input_ids"]
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = transformers.Siglip2Config(
        text_config={**text, "projection_size": 32},
        vision_config={**TOWER, "num_patches": 16, "patch_size": 8},
    )
    transformers.Siglip2Model(config).save_pretrained(folder)
    processor = transformers.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16)
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def metaclip_2(folder: Path) -> None:
    """Saves a model with XLM-RoBERTa's tokens. The end token represents a text."""
    words = tokenizer("roberta")
    ids = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    text = {**TOWER, "vocab_size": len(words), "max_position_embeddings": 77, **ids}
    config = transformers.MetaClip2Config(text_config=text, vision_config=VISION, projection_dim=24)
    transformers.MetaClip2Model(config).save_pretrained(folder)
    transformers.CLIPImageProcessorPil(size=SQUARE, crop_size=SQUARE).save_pretrained(folder)
    words.save_pretrained(folder)


def align(folder: Path, projection: int = 24) -> None:
    """Saves a model with a convolutional network for images."""
    words = word_tokenizer()
    text = {**TOWER, "vocab_size": len(words), "max_position_embeddings": 128}
    vision = {
        "image_size": SIZE,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "kernel_sizes": [3, 5],
        "in_channels": [32, 16],
        "out_channels": [16, 24],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 6],
        "hidden_dim": 24,
    }
    config = transformers.AlignConfig(
        text_config=text,
        vision_config=vision,
        projection_dim=projection,
        temperature_init_value=0.2,
        initializer_range=0.3,
    )
    transformers.AlignModel(config).save_pretrained(folder)
    transformers.EfficientNetImageProcessorPil(size=SQUARE).save_pretrained(folder)
    words.save_pretrained(folder)


FAMILIES = [clip, siglip, siglip2, chinese_clip, metaclip_2, align]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("zero-shot-image-classification", folder)
    pipe = transformers.pipeline("zero-shot-image-classification", model=str(folder), device="cpu")
    yield local, pipe
    local.close()


def body(picture: Any, labels: Any = LABELS, **more: Any) -> dict[str, Any]:
    return {"image": image_media(picture), "candidate_labels": labels, **more}


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for picture in IMAGES:
            equal(local.ask(body(picture)), pipe(picture, LABELS))

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        bodies = [
            body(IMAGES[0], ["one", "two of them"]),
            body(IMAGES[1], ["two of them", "three", "and a fourth that is longer"]),
            body(IMAGES[2]),
        ]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        for picture, request, answer in zip(IMAGES, bodies, answers, strict=True):
            equal(answer, pipe(picture, request["candidate_labels"]))

    def test_several_images(self, case: Any) -> None:
        local, pipe = case
        labels = ["new to the model", *LABELS]
        images = [image_media(picture) for picture in IMAGES]
        answer = local.ask({"image": images, "candidate_labels": labels})
        equal(answer, [pipe(picture, labels) for picture in IMAGES])

    def test_hypothesis_template(self, case: Any) -> None:
        local, pipe = case
        answer = local.ask(body(IMAGES[0], hypothesis_template="{}, far away"))
        equal(answer, pipe(IMAGES[0], LABELS, hypothesis_template="{}, far away"))

    def test_a_label_given_twice(self, case: Any) -> None:
        local, pipe = case
        equal(local.ask(body(IMAGES[0], ["cat", "cat"])), pipe(IMAGES[0], ["cat", "cat"]))

    def test_a_label_as_long_as_the_model_takes(self, case: Any) -> None:
        local, pipe = case
        # The batch is padded to a rounded length beyond the model's last position.
        labels = ["a" * (local.stages.max_tokens() - 2), "b"]
        if "siglip" not in pipe.model.config.model_type:
            labels = [" ".join(labels[0]), "b"]
        answer = local.ask(body(IMAGES[0], labels, hypothesis_template="{}"))
        equal(answer, pipe(IMAGES[0], labels, hypothesis_template="{}"))


class TestLabels:
    def test_a_known_label_is_not_embedded_again(self, case: Any) -> None:
        local, _ = case
        local.ask(body(IMAGES[0], ["seen", "also seen"]))
        local.batches.clear()
        local.ask(body(IMAGES[1], ["also seen", "seen"]))
        assert local.batches == [1]

    def test_items_of_a_request_share_their_labels(self, case: Any) -> None:
        local, _ = case
        local.batches.clear()
        images = [image_media(picture) for picture in IMAGES]
        local.ask({"image": images, "candidate_labels": ["never seen", "nor this one"]})
        assert sum(local.batches) == len(IMAGES) + 2

    def test_an_image_that_is_through_before_its_labels(self, case: Any) -> None:
        local, pipe = case
        request = ZeroShotImageClassificationRequest.model_validate(
            {"image": [image_media(IMAGES[0]), image_media(IMAGES[1])], "candidate_labels": "x,yy"}
        )
        items, parameters = request.items()[0], request.parameters()
        outputs = [
            [local.forward([sample])[0] for sample in samples]
            for samples in [local.stages.preprocess(item, parameters) for item in items]
        ]
        assert [len(output) for output in outputs] == [3, 1]
        second = local.stages.postprocess(outputs[1], parameters)
        first = local.stages.postprocess(outputs[0], parameters)
        work = Work(1, local.pipeline, items, parameters, single=False)
        expected = [pipe(picture, ["x", "yy"]) for picture in IMAGES[:2]]
        equal(towers.finish(work, [first, second]), expected)

    def test_few_are_kept(self, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        local, pipe = case
        monkeypatch.setattr(towers, "_KEPT_TEXTS", 2)
        local.stages._known.clear()
        for picture in IMAGES:
            equal(local.ask(body(picture)), pipe(picture, LABELS))
        assert len(local.stages._known) == 2

    def test_braces_in_a_label_or_template_are_only_text(self, case: Any) -> None:
        local, pipe = case
        labels = ["{0.__class__}", "{cat}"]
        answer = local.ask(body(IMAGES[0], labels, hypothesis_template="a {x}: {}"))
        texts = [f"a {{x}}: {label}" for label in labels]
        expected = pipe(IMAGES[0], texts, hypothesis_template="{}")
        assert [entry["label"] for entry in answer] == [
            entry["label"].removeprefix("a {x}: ") for entry in expected
        ]
        equal([entry["score"] for entry in answer], [entry["score"] for entry in expected])

    def test_one_too_long(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask(body(IMAGES[0], ["cat", "a b c " * 100]))
        assert refused.value.failure.param == "candidate_labels"
        assert "tokens; this model takes at most" in refused.value.failure.message


class TestRequest:
    def test_hugging_face_client_form(self) -> None:
        form = {
            "inputs": "aGk=",
            "parameters": {"candidate_labels": "cat, dog", "hypothesis_template": "a {}"},
        }
        request = ZeroShotImageClassificationRequest.model_validate(form)
        assert request.candidate_labels == ["cat", "dog"]
        assert request.items()[0][0].source == "aGk="
        assert request.parameters() == {
            "candidate_labels": ["cat", "dog"],
            "hypothesis_template": "a {}",
        }

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"candidate_labels": None}, "candidate_labels"),
            ({"candidate_labels": []}, "candidate_labels"),
            ({"candidate_labels": ["cat", " "]}, "candidate_labels"),
            ({"candidate_labels": ["x"] * 1001}, "candidate_labels"),
            ({"candidate_labels": ["x" * 1001]}, "candidate_labels"),
            ({"hypothesis_template": "a photo"}, "hypothesis_template"),
            ({"image": []}, "image"),
            ({"inputs": "aGk="}, "inputs"),
            ({"timeout": 0}, "timeout"),
            ({"top_k": 1}, "top_k"),
        ],
        ids=str,
    )
    def test_refused(self, wrong: dict[str, Any], field: str) -> None:
        fields = {"image": "aGk=", "candidate_labels": ["cat"], **wrong}
        with pytest.raises(ValidationError) as refused:
            ZeroShotImageClassificationRequest.model_validate(fields)
        assert {error["loc"][0] for error in refused.value.errors()} == {field}


class TestEmbeddings:
    """Texts and images are embedded in one space through the endpoint that OpenAI's clients use."""

    @staticmethod
    def expected(pipe: Any, *inputs: Any) -> list[list[float]]:
        siglip = "siglip" in pipe.model.config.model_type
        options = {"padding": "max_length", "max_length": 64} if siglip else {}
        vectors: list[list[float]] = []
        for item in inputs:
            with torch.no_grad():
                if isinstance(item, str):
                    encoded = pipe.tokenizer(item, return_tensors="pt", **options)
                    output = pipe.model.get_text_features(**encoded)
                else:
                    encoded = pipe.image_processor([item], return_tensors="pt")
                    output = pipe.model.get_image_features(**encoded)
            vectors += torch.nn.functional.normalize(output.pooler_output, dim=-1).tolist()
        return vectors

    def test_parity(self, case: Any) -> None:
        local, pipe = case
        inputs = ["cat", {"image": image_media(IMAGES[1])}, {"text": LABELS[1]}]
        answer = local.ask({"input": inputs}, "embeddings")
        assert [item["index"] for item in answer["data"]] == [0, 1, 2]
        vectors = [item["embedding"] for item in answer["data"]]
        for vector, expected in zip(
            vectors, self.expected(pipe, "cat", IMAGES[1], LABELS[1]), strict=True
        ):
            assert vector == pytest.approx(expected, abs=1e-4)
        assert answer["usage"]["prompt_tokens"] > 0

    def test_one_is_as_in_a_list(self, case: Any) -> None:
        local, pipe = case
        for entry, source in (("cat", "cat"), ({"image": image_media(IMAGES[0])}, IMAGES[0])):
            (only,) = local.ask({"input": entry}, "embeddings")["data"]
            assert only["embedding"] == pytest.approx(self.expected(pipe, source)[0], abs=1e-4)

    def test_beside_labels(self, case: Any) -> None:
        """Both endpoints share the model and its batches."""
        local, pipe = case
        local.ask({"input": "between"}, "embeddings")
        equal(local.ask(body(IMAGES[0])), pipe(IMAGES[0], LABELS))

    def test_too_long_a_text(self, case: Any) -> None:
        local, _ = case
        words = "cat dog " * 200
        with pytest.raises(RefusedError) as refused:
            local.ask({"input": words}, "embeddings")
        assert refused.value.failure.param == "input[0]"
        (cut,) = local.ask({"input": words, "truncation": True}, "embeddings")["data"]
        assert all(math.isfinite(value) for value in cut["embedding"])

    @pytest.mark.parametrize(
        ("more", "param"),
        [({"dimensions": 3}, "dimensions"), ({"prompt_name": "query"}, "prompt_name")],
    )
    def test_what_it_has_not(self, case: Any, more: dict[str, Any], param: str) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"input": "cat", **more}, "embeddings")
        assert refused.value.failure.param == param

    def test_tokens(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError, match="not lists of tokens"):
            local.ask({"input": [[1, 2, 3]]}, "embeddings")


@pytest.mark.parametrize(
    "given",
    [{"image": 7}, [{"image": ""}], {"picture": "x"}, [{"text": 7}], [{"text": "a", "image": "b"}]],
)
def test_inputs_that_are_none(given: Any) -> None:
    with pytest.raises(ValidationError):
        EmbeddingsRequest.model_validate({"input": given})
