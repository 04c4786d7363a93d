"""Similarity against sentence-transformers, on a feature extraction deployment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stoker.models.tasks.similarity import SimilarityRequest
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert

SOURCE = "my name is clara"
SENTENCES = ["the model team keeps hot", "i live in berkeley california and my name is clara", "a"]
BODY = {"source_sentence": SOURCE, "sentences": SENTENCES}


@pytest.fixture(scope="module")
def case(tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    import sentence_transformers

    folder: Path = tiny_bert(tmp_path_factory.mktemp("bert"), "Model")
    local = Local("feature-extraction", folder)
    yield local, sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    local.close()


def test_as_sentence_transformers(case: Any) -> None:
    local, encoder = case
    vectors = encoder.encode([SOURCE, *SENTENCES])
    expected = encoder.similarity(vectors[:1], vectors[1:])[0].tolist()
    equal(local.ask(BODY, "similarity"), expected)
    local.batches.clear()
    for answer in local.ask_together([BODY] * 3, "similarity"):
        equal(answer, expected)
    assert max(local.batches) > 1
    # The request format of the hub's client.
    equal(local.ask({"inputs": BODY, "parameters": {}}, "similarity"), expected)


def test_a_sentence_is_its_own_like(case: Any) -> None:
    local, _ = case
    equal(local.ask({**BODY, "sentences": [SOURCE]}, "similarity"), [1.0])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"sentences": ["a", "hot " * 200]}, "sentences[1]"),
        ({"source_sentence": "hot " * 200}, "source_sentence"),
    ],
    ids=["sentence", "source"],
)
def test_a_long_sentence_is_named(case: Any, change: dict[str, Any], param: str) -> None:
    local, _ = case
    with pytest.raises(RefusedError, match="at most 128") as refused:
        local.ask(BODY | change, "similarity")
    assert refused.value.failure.param == param
    assert local.ask({**BODY, **change, "truncation": True}, "similarity")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"source_sentence": "a"}, "sentences"),
        ({"source_sentence": "a", "sentences": []}, "sentences"),
        ({"source_sentence": "a", "sentences": ["a"] * 1001}, "sentences"),
        ({"inputs": "a"}, "must be an object"),
        ({"inputs": BODY, "sentences": ["a"]}, "given twice"),
        ({**BODY, "top_k": 1}, "top_k"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals(body: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        SimilarityRequest.model_validate(body)
