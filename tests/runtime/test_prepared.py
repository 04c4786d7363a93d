"""A server with a graphics device in its table, whose replicas start in prepared workers. Workers
open no context.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

import stoker.demo
from tests.support.deploying import deploy, wait_for
from tests.support.server import Server, running

ROOT = Path(__file__).parents[2]
FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PATH = "/v1/classifications/text"
TEXTS = ["The room was clean and the staff were friendly.", "Never again: cold food, rude waiters."]
STARTED = "starting in a prepared worker"

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch is built for GPUs, and would look for this one"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a separate server, because the table is a setting of the whole server."""
    settings = {
        "STOKER_RUNTIME": "tests.support.graphics:with_prepared_workers",
        "STOKER_PREPARATION_PROCESSES": "2",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with running(tmp_path_factory.mktemp("prepared") / "data", **settings) as server:
        server.wait_ready()
        yield server
    assert not [*(server.data_dir / "cache").glob("prepared-*")]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("prepared") as client:
        yield client


def device(client: httpx.Client) -> dict[str, Any]:
    return client.get("/v1/machine").raise_for_status().json()["devices"][0]


def wait_prepared(client: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while device(client)["prepared_workers"] != 1:
        assert time.monotonic() < deadline, client.get("/v1/machine").json()
        time.sleep(0.05)


def waiting(server: Server) -> psutil.Process:
    """Returns the process of the only prepared worker, which is newer than all replicas."""
    names = [folder.name for folder in (server.data_dir / "cache").glob("prepared-*/*")]
    workers = [
        child for child in host(server).children() if any(name in child.cwd() for name in names)
    ]
    return max(workers, key=psutil.Process.create_time)


def host(server: Server) -> psutil.Process:
    assert server.process
    (process,) = [
        child
        for child in psutil.Process(server.process.pid).children()
        if "stoker.replica.host" in child.cmdline()
    ]
    return process


def answer(client: httpx.Client, model: str) -> Any:
    body = {"model": model, "inputs": TEXTS}
    results = client.post(PATH, json=body, timeout=60).raise_for_status().json()
    return [{one["label"]: round(one["score"], 5) for one in each} for each in results]


def start_again(client: httpx.Client, made: dict[str, Any]) -> None:
    for action, status in (("stop", "stopped"), ("start", "idle")):
        client.post(f"/v1/deployments/{made['id']}/{action}").raise_for_status()
        wait_for(client, made["id"], status)


def log(client: httpx.Client, made: dict[str, Any]) -> str:
    return client.get(f"/v1/deployments/{made['id']}/logs").raise_for_status().text


def test_a_start_in_a_worker_answers_as_any_other(server: Server, client: httpx.Client):
    made = deploy(client, FOLDER, "first", device="auto", engine="torch")
    wait_prepared(client)
    worker = waiting(server)
    assert device(client)["held_bytes"] > 0
    began = time.perf_counter()
    expected = answer(client, "first")
    prepared_s = time.perf_counter() - began
    (shown,) = client.get(f"/v1/deployments/{made['id']}").json()["workers"]
    assert shown["pid"] == worker.pid
    # It was forked before the context was opened.
    assert [child.name() for child in worker.children()] == ["preparation"]
    assert STARTED in log(client, made)
    (models,) = server.data_dir.glob("cache/prepared-*/*")
    weights = models / "model.safetensors"
    blobs = {path.stat().st_ino for path in (server.data_dir / "blobs").rglob("*")}
    assert weights.stat().st_ino in blobs
    # At once, so that no worker is prepared again yet.
    start_again(client, made)
    assert not models.exists()
    began = time.perf_counter()
    assert answer(client, "first") == expected
    print(f"first answer: {prepared_s:.3f} s prepared, {time.perf_counter() - began:.3f} s forked")
    assert log(client, made).count(STARTED) == 1
    wait_prepared(client)
    assert waiting(server).pid != worker.pid
    client.delete(f"/v1/deployments/{made['id']}").raise_for_status()


def test_a_worker_that_dies_with_a_specification_does_not_fail_a_start(
    server: Server, client: httpx.Client
):
    made = deploy(client, FOLDER, "second", device="auto", engine="torch")
    wait_prepared(client)
    worker = waiting(server)
    # A stopped process does not take the specification that the host sends.
    worker.suspend()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(answer, client, "second")
        while device(client)["prepared_workers"]:
            time.sleep(0.05)
        time.sleep(0.5)
        assert not call.done()
        worker.kill()
        assert len(call.result()) == 2
    (shown,) = client.get(f"/v1/deployments/{made['id']}").json()["workers"]
    assert shown["pid"] != worker.pid
    assert STARTED not in log(client, made)


def test_a_killed_worker_does_not_fail_a_start(server: Server, client: httpx.Client):
    wait_prepared(client)
    waiting(server).kill()
    made = deploy(client, FOLDER, "third", device="auto", engine="torch")
    assert len(answer(client, "third")) == 2
    assert STARTED not in log(client, made)


def test_the_host_ends_with_its_worker(server: Server, client: httpx.Client):
    process = host(server)
    children = process.children()
    process.kill()
    _, living = psutil.wait_procs(children, timeout=20)
    assert not living
    assert len(answer(client, "third")) == 2
