"""Another runtime, selected by the setting, works with the unchanged package."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import transformers

import stoker.demo
from tests.cli.support import Cli
from tests.support.deploying import deploy, deployment, wait_for
from tests.support.server import WITHOUT_MODELS, Server, running

ROOT = Path(__file__).parents[2]
FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
MODEL = "sentiment"
PATH = "/v1/classifications/text"
TEXTS = ["The room was clean and the staff were friendly.", "Never again: cold food, rude waiters."]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a separate server, because the runtime is a setting of the whole server."""
    settings = {
        **WITHOUT_MODELS,
        "STOKER_RUNTIME": "tests.runtime.in_process:InProcessRuntime",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with running(tmp_path_factory.mktemp("second") / "data", **settings) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("second") as client:
        yield client


@pytest.fixture(scope="module")
def identifier(client: httpx.Client) -> str:
    """Returns the id of a deployment that has answered."""
    made = deploy(client, FOLDER, MODEL)
    classified(client, TEXTS)
    return made["id"]


def classified(client: httpx.Client, inputs: Any, status: int = 200) -> Any:
    answer = client.post(PATH, json={"model": MODEL, "inputs": inputs})
    assert answer.status_code == status, answer.text
    return answer.json()


def scores(answer: Any) -> list[dict[str, float]]:
    return [{prediction["label"]: prediction["score"] for prediction in each} for each in answer]


def test_answers_are_those_of_transformers(client: httpx.Client, identifier: str):
    pipeline = transformers.pipeline("text-classification", str(FOLDER), top_k=None)
    results = scores(classified(client, TEXTS))
    assert results == [pytest.approx(each, abs=1e-4) for each in scores(pipeline(TEXTS))]
    assert {max(each, key=each.__getitem__) for each in results} == {"positive", "negative"}


def test_it_is_shown_as_it_is(client: httpx.Client, identifier: str):
    shown = deployment(client, identifier)
    assert (shown["status"], shown["reason"]) == ("ready", "loaded")
    (worker,) = shown["workers"]
    assert worker["id"].startswith("thread_")
    assert worker["pid"] is worker["memory_bytes"] is None
    assert worker["engine"] == "torch"


def test_nothing_of_this_machines_runtime_is_there(server: Server, identifier: str):
    assert server.process
    below = psutil.Process(server.process.pid).children(recursive=True)
    # Uploads are inspected in separate processes with any runtime.
    other_processes = [
        process for process in below if "stoker.inspection.process" not in process.cmdline()
    ]
    assert other_processes == []
    assert not (server.data_dir / "logs").exists()


def test_a_command_names_no_process(server: Server, client: httpx.Client, identifier: str):
    key = client.headers["authorization"].removeprefix("Bearer ")
    shown = Cli(server.base_url, key).run("deployments", "show", MODEL)
    assert "ready" in shown.stdout
    assert "pid" not in shown.stdout


def test_its_log_is_read(client: httpx.Client, identifier: str):
    (worker,) = deployment(client, identifier)["workers"]
    lines = client.get(f"/v1/deployments/{identifier}/logs").json()["data"]
    assert lines[-1] == f"{worker['id']} has loaded {MODEL}"


def test_the_gateway_hears_of_starts_and_calls(
    server: Server, client: httpx.Client, identifier: str
):
    path = f"/v1/deployments/{identifier}/events"
    deadline = time.monotonic() + 30
    while len(events := client.get(path).json()["data"]) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {"created", "request", "loaded"} <= {event["reason"] for event in events}
    with server.client(server.operator_key) as operator:
        metrics = operator.get("/metrics").text
    counted = [line for line in metrics.splitlines() if line.startswith("stoker_requests_total{")]
    (ok,) = [line for line in counted if f'model="{MODEL}"' in line and 'outcome="ok"' in line]
    assert float(ok.rpartition(" ")[2]) >= 1


def test_what_a_model_refuses_is_the_callers_fault(client: httpx.Client, identifier: str):
    error = classified(client, "many words " * 200, status=400)["error"]
    assert error["code"] == "invalid_request"
    assert "128" in error["message"], "so many tokens the model takes"


def test_stopped_and_started(client: httpx.Client, identifier: str):
    before = scores(classified(client, TEXTS))
    client.post(f"/v1/deployments/{identifier}/stop").raise_for_status()
    assert wait_for(client, identifier, "stopped")["workers"] == []
    assert classified(client, TEXTS, status=409)["error"]["code"] == "deployment_stopped"
    client.post(f"/v1/deployments/{identifier}/start").raise_for_status()
    assert scores(classified(client, TEXTS)) == [pytest.approx(each, abs=1e-6) for each in before]
