"""Visual question answering against the models called directly, because transformers removed the
pipeline.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.visual_question_answering import VisualQuestionAnsweringRequest
from tests.support import multimodal
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media

PIPELINE = "visual-question-answering"
# The first and the last have the same shape.
PICTURES = [image(0), image(1, (40, 90)), image(2)]
MEDIA = [image_media(picture) for picture in PICTURES]
QUESTIONS = ["what is the name of my team", "a", "keeps the model hot in berkeley"]


def vilt(folder: Path) -> Callable[..., Any]:
    multimodal.vilt(folder)
    model = transformers.ViltForQuestionAnswering.from_pretrained(folder).eval()
    prepare = _preparation(folder)

    def answer(picture: Any, question: str, top_k: int = 5) -> list[dict[str, Any]]:
        with torch.inference_mode():
            scores = model(**prepare(picture, question)).logits[0].sigmoid()
        best = scores.argsort(descending=True)[:top_k].tolist()
        return [{"label": f"LABEL_{index}", "score": scores[index].item()} for index in best]

    return answer


def blip(folder: Path) -> Callable[..., Any]:
    multimodal.blip(folder, "BlipForQuestionAnswering")
    model = transformers.BlipForQuestionAnswering.from_pretrained(folder).eval()
    prepare = _preparation(folder, return_token_type_ids=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def answer(picture: Any, question: str, top_k: int = 5) -> list[dict[str, Any]]:
        with torch.inference_mode():
            tokens = model.generate(
                **prepare(picture, question), max_new_tokens=multimodal.POSITIONS
            )
        text = tokenizer.decode(tokens[0], skip_special_tokens=True).strip()
        return [{"label": text, "score": 1.0}][:top_k]

    return answer


def _preparation(folder: Path, **options: Any) -> Callable[[Any, str], dict[str, Any]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)

    def prepare(picture: Any, question: str) -> dict[str, Any]:
        return {
            **tokenizer(question, return_tensors="pt", **options),
            **processor(images=picture, return_tensors="pt"),
        }

    return prepare


@pytest.fixture(scope="module", params=[vilt, blip], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    answer = request.param(folder)
    local = Local(PIPELINE, folder)
    yield local, answer
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, answer = case
        for media, picture in zip(MEDIA, PICTURES, strict=True):
            for question in QUESTIONS:
                body = {"image": media, "question": question}
                equal(local.ask(body), answer(picture, question))

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, answer = case
        pairs = [(i, q) for i in range(3) for q in range(3)]
        body = {
            "image": [MEDIA[i] for i, _ in pairs],
            "question": [QUESTIONS[q] for _, q in pairs],
        }
        theirs = [answer(PICTURES[i], QUESTIONS[q]) for i, q in pairs]
        local.batches.clear()
        for answers in local.ask_together([body] * 2):
            equal(answers, theirs)
        assert max(local.batches) > 1

    def test_one_image_with_several_questions(self, case: Any) -> None:
        local, answer = case
        theirs = [answer(PICTURES[0], question) for question in QUESTIONS]
        equal(local.ask({"image": MEDIA[0], "question": QUESTIONS}), theirs)
        equal(local.ask({"image": MEDIA[:1], "question": QUESTIONS}), theirs)

    def test_one_question_with_several_images(self, case: Any) -> None:
        local, answer = case
        theirs = [answer(picture, QUESTIONS[0]) for picture in PICTURES]
        equal(local.ask({"image": MEDIA, "question": QUESTIONS[0]}), theirs)
        equal(local.ask({"image": MEDIA, "question": QUESTIONS[:1]}), theirs)

    def test_a_list_of_one_is_a_list(self, case: Any) -> None:
        local, answer = case
        theirs = [answer(PICTURES[0], QUESTIONS[0])]
        equal(local.ask({"image": MEDIA[:1], "question": QUESTIONS[0]}), theirs)
        equal(local.ask({"image": MEDIA[0], "question": QUESTIONS[:1]}), theirs)

    def test_inputs(self, case: Any) -> None:
        local, answer = case
        pairs = [
            {"image": media, "question": question}
            for media, question in zip(MEDIA, QUESTIONS, strict=True)
        ]
        theirs = [answer(*pair, top_k=2) for pair in zip(PICTURES, QUESTIONS, strict=True)]
        equal(local.ask({"inputs": pairs[0], "parameters": {"top_k": 2}}), theirs[0])
        equal(local.ask({"inputs": pairs[:1], "top_k": 2}), theirs[:1])
        equal(local.ask({"inputs": pairs, "top_k": 2}), theirs)

    @pytest.mark.parametrize("top_k", [1, 1000])
    def test_top_k(self, case: Any, top_k: int) -> None:
        local, answer = case
        body = {"image": MEDIA[0], "question": QUESTIONS[0], "top_k": top_k}
        equal(local.ask(body), answer(PICTURES[0], QUESTIONS[0], top_k=top_k))

    def test_probe(self, case: Any) -> None:
        local, _ = case
        assert len(local.forward([local.stages.probe(16)] * 2)) == 2


class TestRefusals:
    def test_not_an_image(self, case: Any) -> None:
        local, _ = case
        bad = Media("image", content=b"no image")
        with pytest.raises(RefusedError) as refused:
            local.ask({"image": [MEDIA[0], bad], "question": QUESTIONS[0]})
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "image[1]"
        with pytest.raises(RefusedError) as refused:
            local.ask({"image": bad, "question": QUESTIONS})
        assert refused.value.failure.param == "image"

    def test_question_too_long(self, case: Any) -> None:
        local, _ = case
        limit = local.stages.max_tokens()
        # Two tokens are special tokens.
        fits, long = "a " * (limit - 2), "a " * (limit - 1)
        with pytest.raises(RefusedError, match=f"at most {limit}") as refused:
            local.ask({"image": MEDIA[0], "question": [fits, long]})
        assert refused.value.failure.param == "question[1]"
        local.ask({"image": MEDIA[0], "question": [fits, fits]})

    @pytest.mark.parametrize(
        ("body", "place"),
        [
            ({"question": "a"}, "image"),
            ({"image": "x"}, "question"),
            ({"image": "x", "question": ""}, "question"),
            ({"image": "x", "question": []}, "question"),
            ({"image": ["x", "y"], "question": ["a", "b", "c"]}, "question"),
            ({"image": ["x", "y", "z"], "question": ["a", "b"]}, "question"),
            ({"image": "x", "question": "a", "top_k": 0}, "top_k"),
            ({"image": "x", "question": "a", "top_k": 1001}, "top_k"),
            ({"image": "x", "question": "a", "colour": "red"}, "colour"),
            ({"image": "x", "inputs": {"image": "x", "question": "a"}}, "image"),
            ({"image": "x", "inputs": "y", "question": "a"}, "image"),
            ({"inputs": {"image": "x"}}, "inputs"),
            ({"inputs": []}, "inputs"),
            ({"inputs": [{"image": "x", "question": "a"}, "b"]}, "inputs"),
            ({"inputs": {"image": "x", "question": "a", "top_k": 2}}, "inputs"),
        ],
        ids=str,
    )
    def test_request(self, body: dict[str, Any], place: str) -> None:
        with pytest.raises(ValidationError) as refused:
            VisualQuestionAnsweringRequest.model_validate(body)
        (error,) = refused.value.errors()
        assert error["loc"][0] == place
