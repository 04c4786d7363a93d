"""The driver's program lists a GPU, but torch is a build for CPUs and cannot use it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import stoker.demo
from tests.cli.support import Cli
from tests.support.deploying import deploy, deployment
from tests.support.driver_program import DriverProgram
from tests.support.server import Server, running

FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PATH = "/v1/classifications/text"
INPUT = "The staff were friendly."

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="torch is built for GPUs, and could use one"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("driver")
    program = DriverProgram(folder / "bin")
    path = os.pathsep.join([str(program.folder), os.environ["PATH"]])
    with running(folder / "data", PATH=path) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("unusable") as client:
        yield client


def wait_for_event(client: httpx.Client, deployment_id: str, reason: str) -> dict[str, Any]:
    """Returns a deployment's only event with a reason. Events are written after answers."""
    deadline = time.monotonic() + 20
    while True:
        listed = client.get(f"/v1/deployments/{deployment_id}/events").raise_for_status().json()
        if events := [event for event in listed["data"] if event["reason"] == reason]:
            (event,) = events
            return event
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_until_nothing_is_held(client: httpx.Client) -> None:
    deadline = time.monotonic() + 20
    while True:
        (device,) = client.get("/v1/machine").raise_for_status().json()["devices"]
        if not device["held_bytes"]:
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_auto_runs_on_the_cpu_and_says_why(server: Server, client: httpx.Client) -> None:
    made = deploy(client, FOLDER, "auto")
    answer = client.post(PATH, json={"model": "auto", "inputs": INPUT}, timeout=120)
    assert answer.raise_for_status().json()[0]["label"] == "positive"
    shown = deployment(client, made["id"])
    assert shown["status"] == "ready"
    assert shown["device_problem"].startswith(f"torch {torch.__version__} is a build for CPUs.")
    (worker,) = shown["workers"]
    assert (worker["device"], worker["device_name"]) == ("cpu", "")
    assert (worker["device_bytes"], worker["device_held_bytes"]) == (None, 0)

    event = wait_for_event(client, made["id"], "device_unusable")
    assert event["status"] == "ready"
    assert "runs on the CPU" in event["message"] and "stoker doctor --gpu" in event["message"]

    # The claim was needed until the replica reported the CPU.
    wait_until_nothing_is_held(client)

    cli = Cli(server.base_url, client.headers["authorization"].removeprefix("Bearer "))
    assert "build for CPUs" in cli.run("deployments", "show", "auto").stdout
    assert " on cpu, " in cli.run("deployments", "show", "auto").stdout
    assert "NVIDIA H100 80GB HBM3" in cli.run("machine").stdout


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_fails_for_good_with_a_hint(client: httpx.Client, device: str) -> None:
    name = device.replace(":", "-")
    made = deploy(client, FOLDER, name, device=device)
    answer = client.post(PATH, json={"model": name, "inputs": INPUT}, timeout=120)
    assert answer.status_code == 503
    shown = deployment(client, made["id"])
    assert (shown["status"], shown["reason"]) == ("failed", "load_failed")
    assert "requires a GPU" in shown["message"]
    assert "torch cannot use it" in shown["message"]
    assert "pip install --force-reinstall torch --index-url" in shown["message"]
    assert "stoker doctor --gpu" in shown["message"]
    wait_until_nothing_is_held(client)

    # Waiting does not help, so that no other start is tried.
    before = client.get(f"/v1/deployments/{made['id']}/events").json()["data"]
    assert client.post(PATH, json={"model": name, "inputs": INPUT}).status_code == 503
    after = client.get(f"/v1/deployments/{made['id']}/events").json()["data"]
    assert len(after) == len(before)


@pytest.mark.release
def test_a_driver_that_hangs(tmp_path: Path) -> None:
    """The server starts, says so, and runs models on the CPU."""
    program = DriverProgram(tmp_path / "bin")
    program.sleeps()
    path = os.pathsep.join([str(program.folder), os.environ["PATH"]])
    with running(tmp_path / "data", PATH=path) as server:
        server.wait_ready()
        with server.account("hanging") as client:
            machine = client.get("/v1/machine").raise_for_status().json()
            assert machine["devices"] == []
            assert "the driver hangs" in machine["device_problem"]
            made = deploy(client, FOLDER, "auto")
            answer = client.post(PATH, json={"model": "auto", "inputs": INPUT}, timeout=120)
            assert answer.raise_for_status().json()[0]["label"] == "positive"
            shown = deployment(client, made["id"])
            assert "the driver hangs" in shown["device_problem"]
            assert shown["workers"][0]["device"] == "cpu"
            deploy(client, FOLDER, "named", device="cuda")
            answer = client.post(PATH, json={"model": "named", "inputs": INPUT}, timeout=120)
            assert answer.status_code == 503
            assert "the driver hangs" in answer.json()["error"]["message"]
