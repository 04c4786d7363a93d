"""Tests of `tiny-vqa` as packaged."""

from random import Random

import pytest
from transformers import (
    AutoImageProcessor,
    AutoModelForVisualQuestionAnswering,
    AutoProcessor,
    AutoTokenizer,
)

from stoker.demo.setup import MODELS as SHIPPED
from tests.demo.models.folders import check
from tools.demo_models import vqa
from tools.demo_models.scenes import ANSWERS, held_out_questions, questions
from tools.demo_models.shapes import Shape

FOLDER = SHIPPED / "tiny-vqa"


def test_folder() -> None:
    check("tiny-vqa", "visual-question-answering")


@pytest.fixture(scope="module")
def parts():
    return tuple(
        auto.from_pretrained(FOLDER, local_files_only=True)
        for auto in (AutoModelForVisualQuestionAnswering, AutoTokenizer, AutoImageProcessor)
    )


class TestQuestions:
    SHAPES = (
        Shape("circle", "red", 10, 10, 5),
        Shape("circle", "blue", 30, 10, 5),
        Shape("square", "blue", 50, 50, 5),
    )

    def test_have_one_answer(self) -> None:
        answers = dict(questions(Random(0), self.SHAPES))
        by_sort = {question.split()[1]: answer for question, answer in answers.items()}
        assert by_sort["many"] == "3"
        assert "red" not in [answer for question, answer in answers.items() if "circle" in question]
        assert [a for q, a in answers.items() if "square?" in q and q.startswith("What")] == [
            "blue"
        ]
        assert [a for q, a in answers.items() if "red?" in q] == ["circle"]

    def test_draws_the_same_again(self) -> None:
        first, again = held_out_questions(5), held_out_questions(5)
        assert [each[1:] for each in first] == [each[1:] for each in again]
        assert [each.image.tobytes() for each in first] == [each.image.tobytes() for each in again]


class TestModel:
    def test_names_its_answers(self, parts) -> None:
        assert tuple(parts[0].config.id2label.values()) == ANSWERS

    def test_answers_questions_about_unseen_scenes(self, parts) -> None:
        assert vqa.accuracy(*parts, held_out_questions(200)) >= 0.9

    def test_one_processor_makes_both_inputs(self) -> None:
        processor = AutoProcessor.from_pretrained(FOLDER, local_files_only=True)
        example = held_out_questions(1)[0]
        encoded = processor(example.image, example.question, return_tensors="pt")
        assert {"input_ids", "pixel_values", "pixel_mask"} <= set(encoded)
