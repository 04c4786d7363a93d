"""Comparison of answers with their expectations."""

import json
import time
from typing import Any

import pytest

from stoker.workloads.evaluation.checks.expecting import failing, why_no_schema
from stoker.workloads.evaluation.checks.schemas import Expect

LABELS = [{"label": "good", "score": 0.2}, {"label": "bad", "score": 0.8}]
ENTITIES = [
    {"entity": "PER", "score": 0.7, "word": "Clara", "start": 0, "end": 5, "index": 1},
    {"entity": "LOC", "score": 0.9, "word": "Bonn", "start": 9, "end": 13, "index": 3},
]
VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [3.0, 4.0]}],
    "model": "m",
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}


def given(**expect: Any) -> dict[str, Any]:
    return Expect(**expect).model_dump(mode="json", exclude_unset=True)


def chat(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "choices": choices}


@pytest.mark.parametrize(
    ("expect", "answer", "said"),
    [
        ({"status": 200}, LABELS, ""),
        ({"top_label": "bad"}, LABELS, ""),
        ({"top_label": "bad"}, [LABELS, LABELS], ""),
        ({"top_label": "good"}, LABELS, "'bad' and not 'good'"),
        ({"top_label": "LOC"}, ENTITIES, ""),
        ({"top_label": "x"}, {"text": "y"}, "no labels"),
        ({"equal": ENTITIES}, ENTITIES, ""),
        ({"equal": [{**ENTITIES[0], "score": 0.70005}, ENTITIES[1]]}, ENTITIES, ""),
        ({"equal": [{**ENTITIES[0], "score": 0.71}, ENTITIES[1]]}, ENTITIES, "The answer is"),
        ({"equal": [{**ENTITIES[0], "start": 1}, ENTITIES[1]]}, ENTITIES, "The answer is"),
        ({"equal": ENTITIES[:1]}, ENTITIES, "The answer is"),
        ({"equal": {**VECTORS, "usage": {}, "model": "other"}}, VECTORS, ""),
        ({"equal": None}, None, ""),
        ({"equal": None}, {}, "and not null"),
        ({"equal": True}, 1, "and not true"),
        ({"contains": "Bonn"}, ENTITIES, ""),
        ({"contains": "Köln"}, ENTITIES, "contains 'Köln'"),
        ({"cosine_min": {"vector": [6, 8], "min": 0.999}}, VECTORS, ""),
        ({"cosine_min": {"vector": [4, 3], "min": 0.95}}, VECTORS, ""),
        ({"cosine_min": {"vector": [4, 3], "min": 0.97}}, VECTORS, "0.960000, below 0.97"),
        ({"cosine_min": {"vector": [1, 2, 3], "min": 0}}, VECTORS, "2 numbers and not 3"),
        ({"cosine_min": {"vector": [1, 2], "min": 0}}, LABELS, "no vector"),
        ({"cosine_min": {"vector": [1.0, 0.0], "min": 1}}, [[[2.0, 0.0], [0.0, 1.0]]], ""),
        ({"json_schema": {"type": "array", "minItems": 2}}, LABELS, ""),
        ({"json_schema": {"items": {"required": ["x"]}}}, LABELS, "at 0"),
        ({"top_label": "good", "contains": "z"}, LABELS, "No text of the answer contains 'z'"),
    ],
)
def test_of_an_answer(expect: dict[str, Any], answer: Any, said: str) -> None:
    message = failing(given(**expect), json.dumps(answer).encode(), is_written=False)
    assert (said in message) if said else not message, message


@pytest.mark.parametrize(
    ("expect", "text", "said"),
    [
        ({"equal": "Paris."}, "Paris.", ""),
        ({"equal": "Rome."}, "Paris.", '"Paris." and not "Rome."'),
        ({"contains": "aris"}, "Paris.", ""),
        ({"contains": "assistant"}, "Paris.", "No text"),
        ({"json_schema": {"required": ["city"]}}, '{"city": "Paris"}', ""),
        ({"json_schema": {"required": ["town"]}}, '{"city": "Paris"}', "at the whole"),
        ({"json_schema": {}}, "Paris.", "not JSON"),
    ],
)
def test_of_a_written_text(expect: dict[str, Any], text: str, said: str) -> None:
    message = failing(given(**expect), json.dumps(chat(text)).encode(), is_written=True)
    assert (said in message) if said else not message, message


def test_of_what_is_no_json() -> None:
    assert not failing(given(contains="Guten"), b"Guten Tag", is_written=False)
    assert failing(given(equal="x"), b"\xff\xfe", is_written=False)


@pytest.mark.parametrize(
    "schema", [{"type": "nothing"}, {"pattern": "("}, {"$ref": "http://127.0.0.1:9/schema.json"}]
)
def test_no_schema(schema: dict[str, Any]) -> None:
    assert why_no_schema(schema).startswith("is not a valid JSON schema: ")


def test_a_pattern_ends() -> None:
    """A pattern ends that would keep a backtracking matcher busy forever."""
    schema = {"items": {"properties": {"label": {"pattern": "^(a+)+$"}}}}
    answer = [{"label": "a" * 60 + "!", "score": 1.0}]
    began = time.process_time()
    message = failing(given(json_schema=schema), json.dumps(answer).encode(), is_written=False)
    assert time.process_time() - began < 5
    assert message
