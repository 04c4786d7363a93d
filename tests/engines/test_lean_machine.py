"""A server without OpenVINO and other optional packages starts, and serves models on torch."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import stoker.demo
from tests.cli.support import Cli
from tests.support import lean
from tests.support.deploying import deploy, push
from tests.support.server import Server, running

MODELS = Path(stoker.demo.__file__).parent / "models"
HIDDEN = (
    "openvino openvino_telemetry nncf diffusers torchvision torchaudio accelerate ftfy gguf "
    "sentencepiece scipy ray asyncpg pandas peft"
)
INSTALL = "pip install 'openvino"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {"PYTHONPATH": lean.__path__[0], "PYTHONHIDDEN": HIDDEN}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("lean") / "data", **environment) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("lean") as client:
        yield client


def test_auto_runs_on_torch(client: httpx.Client) -> None:
    made = deploy(client, MODELS / "tiny-sentiment", "sentiment")
    body = {"model": "sentiment", "inputs": "The staff were friendly."}
    answer = client.post("/v1/classifications/text", json=body, timeout=120)
    assert answer.raise_for_status().json()[0]["label"] == "positive"
    (worker,) = client.get(f"/v1/deployments/{made['id']}").json()["workers"]
    assert worker["engine"] == "torch"


def test_a_language_model_answers(client: httpx.Client) -> None:
    deploy(client, MODELS / "tiny-chat", "chat")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": "chat", "messages": question, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body, timeout=120).raise_for_status().json()
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"engine": "openvino"}, "engine"),
        ({"dtype": "int8"}, "dtype"),
        ({"config": {"weight_format": "int8"}}, "config.weight_format"),
    ],
)
def test_what_needs_openvino_is_rejected(
    client: httpx.Client, fields: dict[str, object], param: str
) -> None:
    artifact = push(client, MODELS / "tiny-sentiment")
    body = {"model": "rejected", "artifact_id": artifact["id"], **fields}
    answer = client.post("/v1/deployments", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert "The engine 'openvino' is not installed on this server" in error["message"]
    assert "'stoker engines install openvino' shows the command" in error["message"]


def test_a_drawing_model_says_what_to_install(client: httpx.Client) -> None:
    artifact = push(client, MODELS / "tiny-draw")
    answer = client.post(
        "/v1/deployments", json={"model": "drawing", "artifact_id": artifact["id"]}
    )
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "'stoker engines install diffusers' shows the command" in message


def test_the_machine_lists_missing_engines(server: Server) -> None:
    with server.client(server.operator_key) as operator:
        listed = operator.get("/v1/machine").raise_for_status().json()["engines"]
    engines = {engine["engine"]: engine for engine in listed}
    assert engines["torch"]["available"]
    assert not engines["openvino"]["available"]
    assert "'stoker engines install openvino'" in engines["openvino"]["detail"]
    assert not engines["diffusers"]["available"]


def test_the_command_line_lists_missing_engines(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    # In separate processes, which lack the packages.
    cli = Cli("http://127.0.0.1:9", settings={"STOKER_DATA_DIR": str(tmp_path), **environment})
    listing, _ = cli.popen("engines", "list", "--json").communicate(timeout=60)
    statuses = {row["name"]: row["status"] for row in json.loads(listing)}
    assert statuses["openvino"] == "not installed"
    _, errors = cli.popen("engines", "install", "openvino").communicate(timeout=60)
    assert INSTALL in errors.replace("\n", " ")
