"""A server with two graphics devices in its table and a torch that is built for CPUs. The claims
are visible everywhere, and models answer as usual.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

import stoker.demo
from tests.cli.support import Cli
from tests.support.deploying import deploy, deployment
from tests.support.scraping import scrape
from tests.support.server import Server, running

ROOT = Path(__file__).parents[2]
FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PATH = "/v1/classifications/text"
TEXTS = ["The room was clean and the staff were friendly.", "Never again: cold food, rude waiters."]
MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch is built for GPUs, and would look for these"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a separate server, because the table is a setting of the whole server."""
    settings = {
        "STOKER_RUNTIME": "tests.support.graphics:with_two_devices",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with running(tmp_path_factory.mktemp("devices") / "data", **settings) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("devices") as client:
        yield client


def devices(client: httpx.Client) -> list[dict[str, Any]]:
    return client.get("/v1/machine").raise_for_status().json()["devices"]


def test_they_are_counted_and_shown(server: Server, client: httpx.Client):
    assert devices(client) == [
        {
            "index": index,
            "name": "Tester 100",
            "total_bytes": total * MIB,
            "budget_bytes": int(total * MIB * 0.9),
            "held_bytes": 0,
            "uuid": f"GPU-{index:08}",
            "used_bytes": None,
            "other_bytes": 0,
            "prepared_workers": 0,
        }
        for index, total in ((0, 1024), (1, 4096))
    ]
    deploy(client, FOLDER, "any")
    answer = client.post(PATH, json={"model": "any", "inputs": TEXTS}).raise_for_status().json()
    pipeline = transformers.pipeline("text-classification", str(FOLDER), top_k=None)
    results = [{one["label"]: one["score"] for one in each} for each in answer]
    expected = [{one["label"]: one["score"] for one in each} for each in pipeline(TEXTS)]
    assert results == [pytest.approx(each, abs=1e-4) for each in expected]
    # The deployment claimed the need of its weights and CUDA until it reported its real use, which
    # is nothing.
    deadline = time.monotonic() + 20
    while held_bytes := [one["held_bytes"] for one in devices(client)][1]:
        assert held_bytes > 512 * MIB and time.monotonic() < deadline
        time.sleep(0.1)
    key = client.headers["authorization"].removeprefix("Bearer ")
    cli = Cli(server.base_url, key)
    lines = cli.run("top").stdout.splitlines()
    assert re.match(r"GPU 0  ░{30} 0 B of 966.4 MB \(Tester 100\)", lines[1]), lines
    assert re.search(r"1: Tester 100 +4.3 GB +3.9 GB", cli.run("machine").stdout)


def test_what_is_named_is_claimed_and_told(client: httpx.Client):
    """The replica receives the named device. torch rejects it, as it would without the table."""
    made = deploy(client, FOLDER, "named", device="cuda:0")
    answer = client.post(PATH, json={"model": "named", "inputs": TEXTS})
    assert answer.status_code == 503
    shown = deployment(client, made["id"])
    assert shown["reason"] == "load_failed" and "CUDA" in shown["message"], shown


def test_one_that_is_not_there_is_refused(client: httpx.Client):
    deploy(client, FOLDER, "missing", device="cuda:5")
    answer = client.post(PATH, json={"model": "missing", "inputs": TEXTS})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "insufficient_memory")
    assert error["message"].startswith("The model requires GPU 5, but this machine has GPU 0, 1.")


def test_a_hot_one_that_fits_no_device_is_refused(client: httpx.Client):
    made = deploy(client, FOLDER, "cool", device="cuda:0")
    body = {"readiness": "hot", "replicas": {"min": 4, "max": 4}}
    answer = client.patch(f"/v1/deployments/{made['id']}", json=body)
    assert answer.status_code == 503, answer.text
    assert "of the memory of GPU 0 and cannot fit" in answer.json()["error"]["message"]


def test_metrics_have_each_device(server: Server):
    with server.client(server.operator_key) as operator:
        families = scrape(operator).families
    total = families["stoker_device_memory_total_bytes"].samples
    assert [(sample.labels["device"], sample.value) for sample in total] == [
        ("cuda:0", 1024 * MIB),
        ("cuda:1", 4096 * MIB),
    ]
    assert total[0].labels["uuid"] == "GPU-00000000"
    assert total[0].labels["name"] == "Tester 100"
    for measure in ("budget", "held", "other"):
        assert len(families[f"stoker_device_memory_{measure}_bytes"].samples) == 2
