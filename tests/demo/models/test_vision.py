"""The shipped image models, loaded by transformers alone, answer held-out pictures correctly."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image, ImageOps

from stoker.demo.setup import MODELS as SHIPPED
from tools.demo_models import clip, detector, digits, image_encoder, segmenter

TASKS = {
    "tiny-digits": "image-classification",
    "tiny-clip": "zero-shot-image-classification",
    "tiny-segmenter": "image-segmentation",
    "tiny-detector": "object-detection",
    "tiny-image-encoder": "image-feature-extraction",
}


@cache
def loaded(name: str, **options: Any) -> Any:
    return transformers.pipeline(TASKS[name], str(SHIPPED / name), device="cpu", **options)


@pytest.mark.parametrize("name", TASKS)
class TestFolders:
    def test_is_at_most_a_megabyte(self, name: str) -> None:
        files = [file for file in (SHIPPED / name).rglob("*") if file.is_file()]
        assert {file.suffix for file in files} <= {".json", ".md", ".safetensors"}
        assert sum(file.stat().st_size for file in files) <= 1_000_000

    def test_card_states_licence_and_task(self, name: str) -> None:
        lines = (SHIPPED / name / "README.md").read_text().splitlines()
        assert {"license: apache-2.0", f"pipeline_tag: {TASKS[name]}"} <= set(lines)

    def test_runs_no_code(self, name: str) -> None:
        assert "auto_map" not in json.loads((SHIPPED / name / "config.json").read_text())


class TestDigits:
    def read(self, images: Sequence[Image.Image]) -> list[str]:
        return [answer[0]["label"] for answer in loaded("tiny-digits")(list(images), top_k=1)]

    def test_dark_ink_on_white_of_another_size(self) -> None:
        images, labels = zip(*digits.held_out()[:150], strict=True)
        dark = [ImageOps.invert(image).resize((90, 90)) for image in images]
        assert np.mean(np.array(self.read(dark)) == labels) >= 0.95

    def test_held_out_digits_are_not_trained_on(self) -> None:
        trained = {image.tobytes() for image, _ in digits.training()}
        assert not trained & {image.tobytes() for image, _ in digits.held_out()}


class TestClip:
    def test_names_by_the_pipelines_own_template(self) -> None:
        images, names = zip(*clip.held_out(60), strict=True)
        labels = [f"a {name}" for name in clip.NAMES]
        answers = loaded("tiny-clip")(list(images), candidate_labels=labels)
        best = [answer[0]["label"] for answer in answers]
        assert np.mean(np.array(best) == [f"a {name}" for name in names]) >= 0.9

    def test_every_known_word_is_one_token(self) -> None:
        words = transformers.AutoTokenizer.from_pretrained(SHIPPED / "tiny-clip")
        assert words.is_fast
        for name in clip.NAMES:
            text = clip.HYPOTHESIS.format(f"a {name}")
            assert len(words(text)["input_ids"]) == len(text.split()) + 3
            assert words.decode(words(text)["input_ids"], skip_special_tokens=True) == (
                text.lower().replace(".", " .")
            )

    def test_unknown_words_are_spelt(self) -> None:
        words = transformers.AutoTokenizer.from_pretrained(SHIPPED / "tiny-clip")
        ids = words("un éléphant 象")["input_ids"]
        assert words.eos_token_id not in ids[:-1]
        assert words.decode(ids, skip_special_tokens=True) == "un éléphant 象"


class TestSegmenter:
    def test_pixels(self) -> None:
        images, truth = zip(*segmenter.held_out(150), strict=True)
        label_maps = [self.labels(answer) for answer in loaded("tiny-segmenter")(list(images))]
        assert np.mean(segmenter.ious(label_maps, truth)) >= 0.8

    def labels(self, answer: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
        labels = {name: at for at, name in segmenter.LABELS.items()}
        return sum(
            (np.asarray(each["mask"]) > 0).astype(np.uint8) * labels[each["label"]]
            for each in answer
        )


class TestDetector:
    def test_recall_and_precision(self) -> None:
        images, truth = zip(*detector.held_out(150), strict=True)
        answers = loaded("tiny-detector")(list(images), threshold=0.5)
        detections = [
            [
                detector.Found(
                    detection["label"], detection["score"], tuple(detection["box"].values())
                )
                for detection in each
            ]
            for each in answers
        ]
        hits = [hit for _, hit in detector.matches(detections, truth)]
        assert sum(hits) / sum(map(len, truth)) >= 0.8
        assert sum(hits) / len(hits) >= 0.8

    def test_overlap(self) -> None:
        assert detector.iou((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)
        assert detector.iou((0, 0, 2, 2), (5, 5, 6, 6)) == 0

    def test_an_object_is_hit_once(self) -> None:
        boxes = [detector.Found("star", score, (0, 0, 4, 4)) for score in (0.6, 0.9)]
        hits = detector.matches([boxes], [[("star", (0, 0, 4, 4)), ("circle", (0, 0, 4, 4))]])
        assert hits == [(boxes[1], True), (boxes[0], False)]
        assert detector.average_precision(hits, "star", 1) == 1
        assert detector.average_precision(hits, "star", 2) == 0.5
        assert detector.average_precision(hits, "circle", 1) == 0


class TestImageEncoder:
    def vectors(self, images: Sequence[Image.Image]) -> Any:
        answers = loaded("tiny-image-encoder", pool=True)(list(images), return_tensors=True)
        return torch.cat(answers)

    def test_nearest_neighbour_of_unseen_names_has_the_same(self) -> None:
        images, names = zip(*image_encoder.held_out(400), strict=True)
        vectors = self.vectors(images)
        assert np.mean(image_encoder.neighbours(vectors, names, image_encoder.UNSEEN)) >= 0.8

    def test_cosine_adds_up_from_kind_and_colour(self) -> None:
        images, names = zip(*image_encoder.held_out(100), strict=True)
        unit = torch.nn.functional.normalize(self.vectors(images), dim=1)
        words = [name.split() for name in names]
        expected = [[np.mean(np.array(pair) == other) for other in words] for pair in words]
        assert np.abs((unit @ unit.T).numpy() - expected).mean() < 0.1
