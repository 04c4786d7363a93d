"""The demo's models answer the examples of the API's document as the document shows."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stoker.demo.examples import EXAMPLES
from stoker.models.tasks.registry import TASKS
from tests.support.server import Server

RIGHT = (
    "token-classification",
    "text-classification",
    "zero-shot-classification",
    "fill-mask",
    "question-answering",
    "translation",
    "summarization",
    "similarity",
    "rerank",
)
"""Tasks with a trained demo model and an example without files."""
TOLERANCE = 0.02
VARYING = {"id", "model", "usage"}


@pytest.fixture(scope="module")
def owner(demo: Server, state: Any) -> Iterator[httpx.Client]:
    with demo.client(state["account_key"]) as client:
        yield client


def same(answer: Any, shown: Any) -> bool:
    """Returns True if an answer matches the documented one, which has rounded numbers and shortened
    lists.
    """
    if isinstance(shown, dict):
        names = shown.keys() - VARYING
        return all(same(answer[name], shown[name]) for name in names)
    if isinstance(shown, list):
        return len(answer) >= len(shown) and all(map(same, answer, shown))
    if isinstance(shown, float):
        return abs(answer - shown) <= TOLERANCE
    return bool(answer == shown)


@pytest.mark.parametrize("name", RIGHT)
def test_the_answer_is_the_one_shown(owner: httpx.Client, name: str) -> None:
    task = TASKS[name]
    body = {**task.example, "model": EXAMPLES[name].model}
    answer = owner.post(task.path, json=body).raise_for_status().json()
    assert same(answer, task.example_result), (answer, task.example_result)
