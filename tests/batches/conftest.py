"""A real server with tiny models, and limits of batches that a test can reach."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.batches.support import MODELS
from tests.support.deploying import deploy
from tests.support.server import Server, running

MOST_LINES = 3000


@pytest.fixture(scope="module")
def batch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {"STOKER_BATCH_LINES": str(MOST_LINES), "STOKER_BATCH_LINE_MIB": "1"}
    with running(tmp_path_factory.mktemp("batches") / "data", **env) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(batch_server: Server) -> Iterator[Any]:
    with batch_server.account("batches") as client:
        deploy(client, MODELS / "tiny-encoder", "embed")
        deploy(client, MODELS / "tiny-chat", "chat", dtype="float32")
        deploy(client, MODELS / "tiny-sentiment", "mood")
        yield client


@pytest.fixture(scope="module")
def sdk(batch_server: Server, client: Any) -> Iterator[openai.OpenAI]:
    with sdk_of(batch_server, client) as sdk:
        yield sdk


def sdk_of(server: Server, client: httpx.Client) -> openai.OpenAI:
    key = client.headers["authorization"].removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)
