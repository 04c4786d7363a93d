"""The demo's chat model on a real server, once on each engine, and the real openai SDK."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

import stoker.demo
from tests.openai.support import chat_model
from tests.support.deploying import deploy, deployment
from tests.support.server import Server

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
ENGINES = tuple(os.environ.get("STOKER_TEST_ENGINES", "torch,openvino").split(","))
"""`make test-vllm` names vllm, which needs an environment of its own."""
ANY = ENGINES[0]
"""For what does not depend on the engine."""
CACHING = ENGINES[-1]
"""One that finds the beginnings of prompts computed."""
RANDOM = "team/chat"
"""The model id of a chat model with random weights."""
CONVERSION_S = 300


BASE_URL, KEY = "STOKER_TEST_BASE_URL", "STOKER_TEST_KEY"
"""Where they are set, what they name is used: the tests of another SDK's process set them."""


@pytest.fixture(scope="session")
def base_url(request: pytest.FixtureRequest) -> str:
    return os.environ.get(BASE_URL) or request.getfixturevalue("server").base_url


@pytest.fixture(scope="session")
def account(request: pytest.FixtureRequest, base_url: str) -> Iterator[httpx.Client]:
    """An account with the chat model deployed by each engine's name, converted where it has to."""
    if KEY in os.environ:
        headers = {"authorization": f"Bearer {os.environ[KEY]}"}
        with httpx.Client(base_url=base_url, headers=headers, timeout=120) as client:
            yield client
        return
    server: Server = request.getfixturevalue("server")
    server.wait_ready()
    with server.account("chat") as client:
        # Compared with torch: in the precision of whatever processor this is, numbers would differ.
        precise = {engine: {} if engine == "vllm" else {"dtype": "float32"} for engine in ENGINES}
        first = {
            engine: deploy(client, MODEL, engine, engine=engine, readiness="hot", **fields)["id"]
            for engine, fields in precise.items()
        }
        for engine, identifier in first.items():
            wait_for_engine(client, identifier, engine)
        yield client


def wait_for_engine(client: httpx.Client, identifier: str, engine: str) -> None:
    deadline = time.monotonic() + CONVERSION_S
    while engine not in [one["engine"] for one in deployment(client, identifier)["workers"]]:
        assert time.monotonic() < deadline, deployment(client, identifier)
        time.sleep(0.2)


@pytest.fixture(scope="session")
def key(account: httpx.Client) -> str:
    return str(account.headers["authorization"]).removeprefix("Bearer ")


@pytest.fixture(scope="session")
def sdk(base_url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="session", params=ENGINES)
def model(request: pytest.FixtureRequest, account: httpx.Client) -> str:
    """The model id, which is the name of its engine."""
    return str(request.param)


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="session")
def random_model(request: pytest.FixtureRequest, account: httpx.Client) -> str:
    if KEY not in os.environ:
        deploy(account, request.getfixturevalue("random_folder"), RANDOM)
    return RANDOM
