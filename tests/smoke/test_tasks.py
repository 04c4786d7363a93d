from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.demo.sentences import NER


@pytest.mark.parametrize(("sentence", "entities"), NER[:3])
def test_token_classification(
    smoke: httpx.Client,
    deployed: Callable[[str], dict[str, Any]],
    sentence: str,
    entities: list[tuple[str, str]],
) -> None:
    deployed("tiny-ner")
    call = {
        "model": "tiny-ner",
        "inputs": sentence,
        "parameters": {"aggregation_strategy": "simple"},
    }
    answer = smoke.post("/v1/classifications/token", json=call).raise_for_status().json()
    assert [(found["word"], found["entity_group"]) for found in answer] == entities
    for found in answer:
        assert sentence[found["start"] : found["end"]] == found["word"]


def test_another_task_is_rejected(
    smoke: httpx.Client, deployed: Callable[[str], dict[str, Any]]
) -> None:
    deployed("tiny-ner")
    refused = smoke.post("/v1/fill-mask", json={"model": "tiny-ner", "inputs": "a"})
    assert refused.json()["error"]["code"] == "endpoint_not_supported"
