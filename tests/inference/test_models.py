"""The list of models tells what their files tell, without loading them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import stoker.demo
from tests.support.deploying import deploy
from tests.support.server import Server

FOLDER = Path(stoker.demo.__file__).parent / "models"
POSITIONS = 1024
"""`max_position_embeddings` of tiny-chat's config.json."""


@pytest.fixture(scope="module")
def client(mortal_gateway: Server) -> Iterator[httpx.Client]:
    with mortal_gateway.account("models") as client:
        for name in ("tiny-chat", "tiny-sentiment", "tiny-encoder"):
            deploy(client, FOLDER / name, name)
        yield client


def row(client: httpx.Client, model: str, **headers: str) -> Any:
    return client.get(f"/v1/models/{model}", headers=headers).raise_for_status().json()


def test_language_model(client: httpx.Client) -> None:
    shown = row(client, "tiny-chat")
    assert (shown["pipeline"], shown["max_model_len"]) == ("text-generation", POSITIONS)
    assert {"chat", "completion", "tools", "structured_outputs"} <= {*shown["capabilities"]}
    assert "vision" not in shown["capabilities"]


def test_other_models(client: httpx.Client) -> None:
    encoder, classifier = row(client, "tiny-encoder"), row(client, "tiny-sentiment")
    assert encoder["max_model_len"] is None
    assert {"embeddings", "rerank", "similarity"} <= {*encoder["capabilities"]}
    assert "embeddings" not in classifier["capabilities"]


def test_list_has_the_same_rows(mortal_gateway: Server, client: httpx.Client) -> None:
    key = client.headers["authorization"].removeprefix("Bearer ")
    sdk = openai.OpenAI(base_url=f"{mortal_gateway.base_url}/v1", api_key=key)
    listed = {model.id: model.to_dict() for model in sdk.models.list()}
    assert listed == {model: row(client, model) for model in listed}
    assert len(listed) == 3


def test_anthropic(client: httpx.Client) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    shown = row(client, "tiny-chat", **headers)
    assert (shown["max_input_tokens"], shown["max_tokens"]) == (POSITIONS, POSITIONS)
    listed = client.get("/v1/models", headers=headers).json()["data"]
    by_id = {model["id"]: model for model in listed}
    assert by_id["tiny-chat"] == shown
    assert by_id["tiny-encoder"]["max_tokens"] is None
