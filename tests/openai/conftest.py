"""Fixtures with the demo's chat model on a real server, on each engine, and the openai SDK."""

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
"""Tested engines. `make test-vllm` sets vllm, which needs its own environment."""
ANY = ENGINES[0]
"""Engine for tests that do not depend on the engine."""
CACHING = ENGINES[-1]
"""Engine with a prefix cache."""
RANDOM = "team/chat"
"""Model id of a chat model with random weights."""
CONVERSION_S = 300


BASE_URL, KEY = "STOKER_TEST_BASE_URL", "STOKER_TEST_KEY"
"""If set, these variables name the server and key to use.

The tests of another SDK's process set them.
"""


@pytest.fixture(scope="session")
def base_url(request: pytest.FixtureRequest) -> str:
    return os.environ.get(BASE_URL) or request.getfixturevalue("server").base_url


@pytest.fixture(scope="session")
def account(request: pytest.FixtureRequest, base_url: str) -> Iterator[httpx.Client]:
    """Yields an account with the chat model, deployed under each engine's name.

    The model is converted if the engine needs it.
    """
    if KEY in os.environ:
        headers = {"authorization": f"Bearer {os.environ[KEY]}"}
        with httpx.Client(base_url=base_url, headers=headers, timeout=120) as client:
            yield client
        return
    server: Server = request.getfixturevalue("server")
    server.wait_ready()
    with server.account("chat") as client:
        # The answers are compared with torch. In the processor's preferred precision, numbers would
        # differ.
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
    while engine not in [worker["engine"] for worker in deployment(client, identifier)["workers"]]:
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
    """Returns the model id, which equals the name of its engine."""
    return str(request.param)


@pytest.fixture(scope="session")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="session")
def random_model(request: pytest.FixtureRequest, account: httpx.Client) -> str:
    if KEY not in os.environ:
        deploy(account, request.getfixturevalue("random_folder"), RANDOM)
    return RANDOM
