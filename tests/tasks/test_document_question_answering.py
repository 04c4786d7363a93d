"""Document question answering against the transformers pipeline."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.media.media import Media
from stoker.models.tasks.document_question_answering import DocumentQuestionAnsweringRequest
from tests.support import multimodal
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media

PIPELINE = "document-question-answering"
PICTURES = [image(seed) for seed in range(3)]
MEDIA = [image_media(picture) for picture in PICTURES]
QUESTIONS = ["the name", "my team lives", "a"]


def page(words: str, left: int = 0) -> list[Any]:
    return [
        [word, [left + 10 * i, 5 * i, left + 10 * i + 9, 5 * i + 20]]
        for i, word in enumerate(words.split())
    ]


PAGES = [
    page("my name is clara and i live in berkeley"),
    page("the team keeps a model hot " * 9, 300),
    page("california"),
]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    yield from _case(tmp_path_factory.mktemp("layoutlm"), multimodal.layoutlm)


@pytest.fixture(scope="module")
def donut(tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    yield from _case(tmp_path_factory.mktemp("donut"), multimodal.donut)


def _case(folder: Path, build: Any) -> Iterator[tuple[Local, Any]]:
    transformers.set_seed(0)
    build(folder)
    local = Local(PIPELINE, folder)
    yield local, transformers.pipeline(PIPELINE, model=str(folder), device="cpu")
    local.close()


def asked(index: int, **parameters: Any) -> dict[str, Any]:
    return {
        "image": MEDIA[index],
        "question": QUESTIONS[index],
        "word_boxes": PAGES[index],
        **parameters,
    }


def expected(pipe: Any, index: int, question: str = "", **parameters: Any) -> Any:
    return pipe(
        image=None,
        question=question or QUESTIONS[index],
        word_boxes=PAGES[index],
        **{"max_answer_len": 15} | parameters,
    )


class TestLayout:
    def test_alone(self, layout: Any) -> None:
        local, pipe = layout
        for index in range(3):
            equal(local.ask(asked(index)), expected(pipe, index))

    def test_in_a_mixed_batch(self, layout: Any) -> None:
        local, pipe = layout
        many = {"image": MEDIA, "question": QUESTIONS, "word_boxes": PAGES, "top_k": 4}
        local.batches.clear()
        for answers in local.ask_together([many] * 3):
            equal(answers, [expected(pipe, index, top_k=4) for index in range(3)])
        assert max(local.batches) > 1

    def test_one_page_with_several_questions(self, layout: Any) -> None:
        local, pipe = layout
        answers = local.ask(asked(0, question=QUESTIONS))
        equal(answers, [expected(pipe, 0, question) for question in QUESTIONS])
        answers = local.ask({"image": MEDIA[:1], "question": QUESTIONS, "word_boxes": PAGES[:1]})
        equal(answers, [expected(pipe, 0, question) for question in QUESTIONS])

    def test_inputs(self, layout: Any) -> None:
        local, pipe = layout
        equal(local.ask({"inputs": asked(0)}), expected(pipe, 0))
        answers = local.ask({"inputs": [asked(index) for index in range(3)]})
        equal(answers, [expected(pipe, index) for index in range(3)])

    @pytest.mark.parametrize(
        "parameters",
        [
            {"top_k": 3},
            {"top_k": 1000},
            {"max_answer_len": 1, "top_k": 3},
            {"handle_impossible_answer": True, "top_k": 50},
            {"max_seq_len": 16, "top_k": 3},
            {"max_seq_len": 24, "doc_stride": 2, "top_k": 3},
            {"doc_stride": 0},
        ],
        ids=str,
    )
    def test_parameters(self, layout: Any, parameters: dict[str, Any]) -> None:
        local, pipe = layout
        equal(local.ask(asked(1, **parameters)), expected(pipe, 1, **parameters))

    def test_answers_are_words_of_the_page(self, layout: Any) -> None:
        local, _ = layout
        words = [word for word, _ in PAGES[0]]
        for answer in local.ask(asked(0, top_k=20)):
            assert answer["answer"] == " ".join(words[answer["start"] : answer["end"] + 1])

    def test_no_words(self, layout: Any) -> None:
        local, _ = layout
        with pytest.raises(RefusedError, match="no OCR") as refused:
            local.ask({"image": MEDIA[0], "question": "a"})
        assert refused.value.failure.param == "word_boxes"
        assert refused.value.failure.code == "invalid_request"

    def test_not_an_image(self, layout: Any) -> None:
        local, _ = layout
        with pytest.raises(RefusedError) as refused:
            local.ask(asked(0, image=Media("image", content=b"no image")))
        assert refused.value.failure.code == "invalid_media"
        assert refused.value.failure.param == "image"

    def test_question_leaves_no_room(self, layout: Any) -> None:
        local, _ = layout
        with pytest.raises(RefusedError, match="which leaves none of the 35") as refused:
            local.ask(asked(0, question=["a", "a " * 34]))
        assert refused.value.failure.param == "question[1]"
        for count in range(20, 31):
            local.ask(asked(1, question="a " * count))

    def test_stride_as_long_as_a_part(self, layout: Any) -> None:
        local, _ = layout
        with pytest.raises(RefusedError, match=r"must be less than [0-9]+, the number") as refused:
            local.ask(asked(1, doc_stride=34))
        assert refused.value.failure.param == "doc_stride"


class TestDonut:
    def test_alone_and_together(self, donut: Any) -> None:
        local, pipe = donut
        theirs = [
            [pipe(image=picture, question=question) for question in QUESTIONS]
            for picture in PICTURES
        ]
        for media, row in zip(MEDIA, theirs, strict=True):
            for question, answer in zip(QUESTIONS, row, strict=True):
                equal(local.ask({"image": media, "question": question}), answer)
        local.batches.clear()
        bodies = [{"image": media, "question": QUESTIONS} for media in MEDIA]
        equal(local.ask_together(bodies), theirs)
        assert max(local.batches) > 1
        # The answers must differ, or this test would show little.
        assert len({str(answer) for row in theirs for answer in row}) > 1

    def test_answer_between_its_marks(self, donut: Any) -> None:
        local, _ = donut
        text = "<s_docvqa><s_question>the name</s_question><s_answer>clara</s_answer>[SEP][PAD]"
        tokens = local.stages.tokenizer(text, add_special_tokens=False)["input_ids"]
        outputs = [{"sequences": torch.tensor([tokens])}]
        assert local.stages.postprocess(outputs, {"top_k": 1}) == [{"answer": "clara"}]

    def test_question_too_long(self, donut: Any) -> None:
        local, _ = donut
        with pytest.raises(RefusedError, match=f"at most {multimodal.POSITIONS}") as refused:
            local.ask({"image": MEDIA[0], "question": "a " * multimodal.POSITIONS})
        assert refused.value.failure.param == "question"
        # Four of the tokens are markers.
        local.ask({"image": MEDIA[0], "question": "a " * (multimodal.POSITIONS - 4)})


class TestRequest:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"image": None},
            {"question": None},
            {"question": ["a", "b"], "image": ["x", "y", "z"]},
            {"word_boxes": []},
            {"word_boxes": "clara"},
            {"word_boxes": [["clara"]]},
            {"word_boxes": [["clara", [0, 0, 9]]]},
            {"word_boxes": [["clara", [0, 0, 9, 1001]]]},
            {"word_boxes": [["clara", [-1, 0, 9, 9]]]},
            {"word_boxes": [["clara", [9, 0, 8, 9]]]},
            {"word_boxes": [["clara", [0, 0, 0.5, 1]]]},
            {"word_boxes": [["", [0, 0, 9, 9]]]},
            {"word_boxes": [["a", [0, 0, 9, 9]]] * 4097},
            {"word_boxes": [PAGES[0]]},
            {"image": ["x", "y"], "word_boxes": PAGES[0]},
            {"image": ["x", "y"], "word_boxes": PAGES},
            {"top_k": 0},
            {"top_k": 1001},
            {"max_answer_len": 0},
            {"max_answer_len": 513},
            {"max_seq_len": 15},
            {"max_seq_len": 8193},
            {"doc_stride": -1},
            {"lang": "eng"},
        ],
        ids=lambda wrong: str(wrong)[:60],
    )
    def test_refused(self, wrong: dict[str, Any]) -> None:
        body = {"image": "x", "question": "a", "word_boxes": PAGES[0]} | wrong
        body = {name: value for name, value in body.items() if value is not None}
        with pytest.raises(ValidationError):
            DocumentQuestionAnsweringRequest.model_validate(body)
