"""A GGUF file from the command line to an answer, through the real openai SDK, on both engines."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.cli.support import Cli, account_cli
from tests.openai.conftest import CONVERSION_S, MODEL
from tests.support.deploying import deployment
from tests.support.gguf import write_gguf
from tests.support.server import Server
from tools.demo_models.chat_text import STATED

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


@pytest.fixture(scope="module")
def cli(server: Server) -> Cli:
    server.wait_ready()
    return account_cli(server, "gguf")


@pytest.fixture(scope="module")
def client(server: Server, cli: Cli) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {cli.key}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(server: Server, cli: Cli) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=cli.key, max_retries=0)


def running_on(client: httpx.Client, artifact: str, engine: str) -> str:
    """Deploys the artifact, waits for the engine and returns the model's id."""
    body = {"model": engine, "artifact_id": artifact, "engine": engine, "readiness": "hot"}
    made = client.post("/v1/deployments", json=body).raise_for_status().json()
    deadline = time.monotonic() + CONVERSION_S
    while engine not in [worker["engine"] for worker in deployment(client, made["id"])["workers"]]:
        assert time.monotonic() < deadline, deployment(client, made["id"])
        time.sleep(0.2)
    return engine


def answer(sdk: openai.OpenAI, model: str, question: str) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    # A GGUF file does not specify greedy decoding.
    completion = sdk.chat.completions.create(model=model, messages=messages, temperature=0)
    return completion.choices[0]


def test_one_file_on_torch(
    cli: Cli, client: httpx.Client, sdk: openai.OpenAI, tmp_path: Path
) -> None:
    path = write_gguf(MODEL, tmp_path / "tiny-chat.F16.gguf", "F16")
    artifact = cli.json("artifacts", "push", str(path))
    assert artifact["display_name"] == "tiny-chat.F16"
    assert artifact["pipeline"] == "text-generation"
    inspection = artifact["inspection"]
    assert inspection["architecture"] == "LlamaForCausalLM"
    assert inspection["dtype"] == "F16"
    assert inspection["warnings"] == []
    choice = answer(sdk, running_on(client, artifact["id"], "torch"), QUESTION)
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")


def test_a_folder_on_openvino(
    cli: Cli, client: httpx.Client, sdk: openai.OpenAI, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny-chat"
    folder.mkdir()
    # No converter knows how this model's tokenizer splits texts. So the tokenizer's file is stored
    # next to the weights.
    write_gguf(MODEL, folder / "tiny-chat.Q8_0.gguf", "Q8_0", pre="tiny-chat")
    refused = cli.run("artifacts", "push", str(folder), "--name", "alone")
    assert refused.returncode == 1
    assert "tokenizer.json" in refused.stderr
    shutil.copy(MODEL / "tokenizer.json", folder)
    artifact = cli.json("artifacts", "push", str(folder))
    assert artifact["inspection"]["dtype"] == "Q8_0"
    model = running_on(client, artifact["id"], "openvino")
    right = 0
    for question, expected in STATED.items():
        choice = answer(sdk, model, question)
        right += choice.message.content == expected
    assert answer(sdk, model, QUESTION).message.content == ANSWER
    # Eight bits may change one or two answers.
    assert right >= len(STATED) - 2
