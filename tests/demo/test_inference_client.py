"""huggingface_hub's InferenceClient works with the endpoints that it knows, by their URLs."""

import io
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from PIL import Image

from stoker.demo.examples import EXAMPLES, MEDIA
from stoker.models.tasks.registry import TASKS
from tests.demo.test_demo import ROOT
from tests.support.server import Server


@pytest.fixture
def client(demo: Server, state: Any):
    def of(task: str) -> InferenceClient:
        key = state["deployments"][EXAMPLES[task].model]["key"]
        return InferenceClient(
            model=f"{demo.base_url}{TASKS[task].path}", token=key, provider="hf-inference"
        )

    return of


def media(task: str) -> bytes:
    (name,) = EXAMPLES[task].files.values()
    return (ROOT / MEDIA / name).read_bytes()


class TestText:
    def test_token_classification(self, client: Any) -> None:
        entities = client("token-classification").token_classification(
            "Maria Schmidt works at Siemens in Berlin.", aggregation_strategy="simple"
        )
        assert [(entity.entity_group, entity.start, entity.end) for entity in entities] == [
            ("PER", 0, 13),
            ("ORG", 23, 30),
            ("LOC", 34, 40),
        ]

    def test_fill_mask(self, client: Any) -> None:
        words = client("fill-mask").fill_mask("The capital of France is [MASK].", top_k=2)
        assert words[0].token_str == "paris"
        assert len(words) == 2

    def test_feature_extraction(self, client: Any) -> None:
        assert client("feature-extraction").feature_extraction("How do I bake bread?").shape == (
            64,
        )

    def test_sentence_similarity(self, client: Any) -> None:
        related, unrelated = client("similarity").sentence_similarity(
            "How do I bake bread?",
            other_sentences=["What is the way to bake bread?", "The train is late."],
        )
        assert related > unrelated

    def test_question_answering(self, client: Any) -> None:
        body = EXAMPLES["question-answering"].body
        answer = client("question-answering").question_answering(
            question=body["question"], context=body["context"]
        )
        assert body["context"][answer.start : answer.end] == answer.answer

    def test_translation(self, client: Any) -> None:
        answer = client("translation").translation(EXAMPLES["translation"].body["inputs"])
        assert answer.translation_text

    def test_summarization(self, client: Any) -> None:
        answer = client("summarization").summarization(EXAMPLES["summarization"].body["inputs"])
        assert isinstance(answer.summary_text, str)

    def test_table_question_answering(self, client: Any) -> None:
        body = EXAMPLES["table-question-answering"].body
        answer = client("table-question-answering").table_question_answering(
            table=body["table"], query=body["query"]
        )
        assert isinstance(answer.answer, str)


class TestMedia:
    def test_image_classification(self, client: Any) -> None:
        content = media("image-classification")
        for labels in (
            client("image-classification").image_classification(content),
            client("image-classification").image_classification(content, top_k=2),
        ):
            assert labels[0].label == "7"

    def test_zero_shot_image_classification(self, client: Any) -> None:
        labels = client("zero-shot-image-classification").zero_shot_image_classification(
            media("zero-shot-image-classification"),
            candidate_labels=["a red circle", "a blue square"],
        )
        assert labels[0].label == "a red circle"

    def test_object_detection(self, client: Any) -> None:
        content = media("object-detection")
        width, height = Image.open(io.BytesIO(content)).size
        detections = client("object-detection").object_detection(content, threshold=0.3)
        assert detections
        for detection in detections:
            assert 0 <= detection.box.xmin < detection.box.xmax <= width
            assert 0 <= detection.box.ymin < detection.box.ymax <= height

    def test_visual_question_answering(self, client: Any) -> None:
        """The client sends the image twice."""
        answers = client("visual-question-answering").visual_question_answering(
            media("visual-question-answering"), "What colour is the circle?", top_k=2
        )
        assert (len(answers), answers[0].label) == (2, "red")

    def test_image_to_text(self, client: Any) -> None:
        answer = client("image-to-text").image_to_text(media("image-to-text"))
        assert "red circle" in answer.generated_text

    def test_audio_classification(self, client: Any) -> None:
        labels = client("audio-classification").audio_classification(media("audio-classification"))
        assert labels[0].score > 0.5
