"""Compares pairs of answers with known differences."""

import json
import math
from typing import Any

import pytest

from stoker.workloads.evaluation.replay.comparison import Comparison


def compared(*pairs: tuple[Any, Any]) -> Comparison:
    comparison = Comparison()
    for ours, theirs in pairs:
        comparison.add(json.dumps(ours).encode(), json.dumps(theirs).encode())
    return comparison


def ranked(**scores: float) -> list[dict[str, Any]]:
    return [{"label": label, "score": score} for label, score in scores.items()]


def token(entity: str, score: float, start: int) -> dict[str, Any]:
    return {"word": "w", "entity": entity, "score": score, "index": 1, "start": start, "end": 9}


def test_equal_answers() -> None:
    for answer in (ranked(good=0.9, bad=0.1), [[0.1, 0.2]], "text", {"choices": []}, [], None, 3):
        comparison = compared((answer, answer))
        assert (comparison.difference, comparison.agreement, comparison.differs) == (0, 1, False)


def test_top_labels() -> None:
    comparison = compared(
        (ranked(good=0.9, bad=0.1), ranked(good=0.88, bad=0.12)),
        (ranked(good=0.6, bad=0.4), ranked(bad=0.55, good=0.45)),
    )
    assert (comparison.measure, comparison.agreement) == ("top_labels", 0.5)
    # Scores of the same label are compared, at any position.
    assert comparison.difference == pytest.approx(0.15)
    assert comparison.differs
    assert comparison.in_words() == "1 of 2 top labels differ."


def test_labels_of_tokens_are_each_one_of_their_own() -> None:
    ours = [token("B-PER", 0.9, 0), token("B-LOC", 0.8, 9)]
    comparison = compared((ours, [token("B-PER", 0.85, 0), token("B-ORG", 0.8, 9)]))
    assert (comparison.measure, comparison.agreement) == ("top_labels", 0.5)
    assert comparison.difference == pytest.approx(0.05)
    # A missing label, and an additional label.
    assert compared((ours, ours[:1])).agreement == 0.5
    assert compared((ours[:1], ours)).agreement == 0.5
    assert compared((ours, [])).agreement == 0


def test_cosine() -> None:
    comparison = compared(([1.0, 0.0], [1.0, 1.0]), ([[3.0, 4.0]], [[3.0, 4.0]]))
    assert comparison.measure == "cosine"
    assert comparison.agreement == pytest.approx(math.sqrt(0.5))
    assert (comparison.difference, comparison.differs) == (1.0, True)
    assert comparison.in_words() == "The least cosine between two vectors is 0.7071."
    assert compared(([1.0, 0.0], [1.0, 0.0, 0.0])).agreement == 0
    assert compared(([0.0, 0.0], [0.0, 0.0])).agreement == 1
    assert compared(([0.0, 0.0], [0.0, 1.0])).agreement == 0
    # The format of embeddings responses.
    ours = {"data": [{"index": 0, "embedding": [1.0, 2.0]}], "usage": {"total_tokens": 3}}
    theirs = {"data": [{"index": 0, "embedding": [2.0, 4.0]}], "usage": {"total_tokens": 4}}
    assert compared((ours, theirs)).agreement == pytest.approx(1)


def test_ranks() -> None:
    def hits(*pairs: tuple[int, float]) -> dict[str, Any]:
        return {"results": [{"index": at, "relevance_score": score} for at, score in pairs]}

    comparison = compared((hits((1, 0.9), (0, 0.2)), hits((1, 0.8), (0, 0.3))))
    assert (comparison.measure, comparison.agreement) == ("top_labels", 1)
    assert comparison.difference == pytest.approx(0.1)
    assert compared((hits((1, 0.9), (0, 0.2)), hits((0, 0.5), (1, 0.4)))).agreement == 0


def test_texts() -> None:
    def answer(text: str) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1" + text,
            "created": len(text),
            "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
        }

    comparison = compared((answer("a"), answer("a")), (answer("b"), answer("c")))
    assert (comparison.measure, comparison.agreement, comparison.differs) == ("texts", 0.5, False)
    assert compared(("a", "b")).differs


def test_what_is_no_json() -> None:
    comparison = Comparison()
    comparison.add(b"\x00\x01", b"\x00\x01")
    comparison.add(b"\x00\x01", b"\x00\x02")
    assert comparison.agreement == 0.5


def test_numbers_that_are_none() -> None:
    comparison = Comparison()
    comparison.add(b"[0.5, 0.5]", b"[NaN, 0.5]")
    assert comparison.differs
    assert comparison.in_words() == "Some numbers are NaN or infinite."


@pytest.mark.parametrize("other", [None, {}, [], "x", 1, [[1]], [None], {"label": 3}])
def test_answers_of_another_shape(other: Any) -> None:
    comparison = compared((ranked(good=0.9, bad=0.1), other))
    assert comparison.agreement == 0
    assert comparison.differs
