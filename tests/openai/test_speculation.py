"""Answers with and without speculative decoding are equal."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.openai.conftest import MODEL
from tests.support.deploying import deploy
from tests.support.scraping import scrape
from tests.support.server import Server

WITH, WITHOUT = "repeating", "unrepeated"
TEXT = "one two three four five six seven eight. one two three four five six seven eight. one two"


@pytest.fixture(scope="module", autouse=True)
def deployed(account: httpx.Client) -> Iterator[None]:
    configs = {WITH: {}, WITHOUT: {"speculation": "off"}}
    made = [
        deploy(
            account, MODEL, name, engine="torch", dtype="float32", readiness="hot", config=config
        )
        for name, config in configs.items()
    ]
    yield
    for row in made:
        account.delete(f"/v1/deployments/{row['id']}").raise_for_status()


def answer(sdk: openai.OpenAI, model: str, **more: Any) -> Any:
    wishes: dict[str, Any] = {"max_tokens": 150, "temperature": 0} | more
    extra = {"ignore_eos": True} | wishes.pop("extra_body", {})
    return sdk.completions.create(model=model, prompt=TEXT, extra_body=extra, **wishes)


def speculated(server: Server, model: str) -> dict[str, float]:
    """Returns the number of speculated tokens by outcome. Replicas report it once a second."""
    with server.client(server.operator_key) as operator:
        metrics = scrape(operator)
    return {
        outcome: metrics.get("stoker_speculated_tokens_total", model=model, outcome=outcome)
        for outcome in ("drafted", "accepted")
    }


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"logprobs": 2},
        {"stop": ["three four"]},
        {"temperature": 0.7, "seed": 4},
        {"frequency_penalty": 0.1, "n": 2, "temperature": 0.5, "seed": 1},
        {"max_tokens": 9},
    ],
    ids=str,
)
def test_answers_are_the_same(sdk: openai.OpenAI, wishes: dict[str, Any]) -> None:
    speculative, other = (answer(sdk, model, **wishes) for model in (WITH, WITHOUT))
    assert [choice.text for choice in speculative.choices] == [
        choice.text for choice in other.choices
    ]
    assert [choice.finish_reason for choice in speculative.choices] == [
        choice.finish_reason for choice in other.choices
    ]
    assert speculative.usage == other.usage


def test_each_token_is_a_part_of_its_own(sdk: openai.OpenAI) -> None:
    """Each token arrives in a separate part, because clients count parts as tokens."""
    parts = [
        sum(bool(part.choices and part.choices[0].text) for part in answer(sdk, model, stream=True))
        for model in (WITH, WITHOUT)
    ]
    assert parts[0] == parts[1] > 100


def test_is_counted(sdk: openai.OpenAI, server: Server) -> None:
    answer(sdk, WITH)
    answer(sdk, WITHOUT)
    deadline = time.monotonic() + 20
    while not (counts := speculated(server, WITH))["accepted"]:
        assert time.monotonic() < deadline, "nothing was guessed"
        time.sleep(0.2)
    assert 0 < counts["accepted"] <= counts["drafted"]
    assert set(speculated(server, WITHOUT).values()) == {0}
