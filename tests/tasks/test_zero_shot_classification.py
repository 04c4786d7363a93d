"""Zero-shot text classification against the transformers pipeline, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.inspection.config import find_pipeline
from stoker.models.tasks.registry import PIPELINES
from stoker.models.tasks.zero_shot_classification import ZeroShotClassificationRequest
from tests.support.compare import equal
from tests.support.language import tokenizer
from tests.support.local import Local, RefusedError

NAMES = {0: "contradiction", 1: "neutral", 2: "entailment"}
LABELS = ["sport", "music in london", "politics"]
TEXTS = ["the tower is in paris", "clara lives where the river is, and maria was in london.", "a"]


def bert(folder: Path) -> None:
    words = tokenizer("bert")
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.5,
        id2label=NAMES,
        label2id={name: number for number, name in NAMES.items()},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    words.save_pretrained(folder)


def bart(folder: Path) -> None:
    words = tokenizer("roberta")
    config = transformers.BartConfig(
        vocab_size=len(words),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=128,
        init_std=0.5,
        # Entailment comes first, so that contradiction is the last.
        id2label=dict(enumerate(reversed(NAMES.values()))),
        label2id={name: number for number, name in enumerate(reversed(NAMES.values()))},
    )
    transformers.BartForSequenceClassification(config).save_pretrained(folder)
    words.save_pretrained(folder)


@pytest.fixture(scope="module", params=[bert, bart], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("zero-shot-classification", folder)
    yield local, transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for text in TEXTS:
            answer = local.ask({"inputs": text, "candidate_labels": LABELS})
            equal(answer, pipe(text, LABELS))
            assert sum(answer["scores"]) == pytest.approx(1)

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        local.batches.clear()
        bodies = [{"inputs": TEXTS, "candidate_labels": LABELS}] * 2
        for answers in local.ask_together(bodies):
            for answer, text in zip(answers, TEXTS, strict=True):
                equal(answer, pipe(text, LABELS))
        assert max(local.batches) > len(LABELS)

    @pytest.mark.parametrize(
        "parameters",
        [
            {"multi_label": True},
            {"hypothesis_template": "{} is this text about."},
            {"candidate_labels": "sport, music ,politics"},
            {"candidate_labels": ["music"]},
        ],
        ids=str,
    )
    def test_parameters(self, case: Any, parameters: dict[str, Any]) -> None:
        local, pipe = case
        options = {"candidate_labels": LABELS} | parameters
        equal(local.ask({"inputs": TEXTS[0], **options}), pipe(TEXTS[0], **options))

    def test_only_the_placeholder_of_a_template_is_replaced(self, case: Any) -> None:
        local, pipe = case
        template = "{0} this {} is {name}"
        answer = local.ask(
            {"inputs": "a", "candidate_labels": LABELS, "hypothesis_template": template}
        )
        escaped = "{{0}} this {} is {{name}}"
        equal(answer, pipe("a", LABELS, hypothesis_template=escaped))


class TestLength:
    def test_a_long_text_is_refused_or_cut_before_the_hypothesis(self, case: Any) -> None:
        local, pipe = case
        text = "paris " * 200
        body = {"inputs": ["a", text], "candidate_labels": LABELS}
        with pytest.raises(RefusedError, match="at most 128") as refused:
            local.ask(body)
        assert refused.value.failure.param == "inputs[1]"
        equal(local.ask({**body, "truncation": True})[1]["scores"], pipe(text, LABELS)["scores"])

    def test_a_hypothesis_without_room_for_the_text(self, case: Any) -> None:
        local, _ = case
        body = {"inputs": "paris", "candidate_labels": ["river " * 150], "truncation": True}
        with pytest.raises(RefusedError, match="leaves none"):
            local.ask(body)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "candidate_labels"),
        ({"candidate_labels": []}, "candidate_labels"),
        ({"candidate_labels": " , "}, "candidate_labels"),
        ({"candidate_labels": ["a"] * 1001}, "candidate_labels"),
        ({"candidate_labels": ["a"], "hypothesis_template": "about"}, "place of the label"),
        ({"candidate_labels": ["a"], "multilabel": True}, "multilabel"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals(body: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        ZeroShotClassificationRequest.model_validate({"inputs": "a"} | body)


def test_an_nli_model_is_deployed_by_naming_the_pipeline() -> None:
    architecture = "BertForSequenceClassification"
    pipeline = "zero-shot-classification"
    assert find_pipeline(architecture, pipeline, (), PIPELINES) == pipeline
    assert find_pipeline(architecture, None, (), PIPELINES) == "text-classification"
