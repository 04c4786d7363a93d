"""Replicas on a GPU run with the smallest exception if CUDA does not start inside all walls.

The machine only seems to have a GPU, and a stand-in for its driver needs a file that the walls
block. So the models run on the CPU, inside the walls of replicas on a GPU.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.sandbox import Opening, Wall, landlock, seccomp
from stoker.wire.gpu_walls import GpuWalls
from tests.support import driver, faulty
from tests.support.deploying import deploy, push
from tests.support.server import Server, running

FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PATH = "/v1/classifications/text"
NEEDED = "/etc/hostname"
OPENING = f"{NEEDED} may be read (wall 'files')"
pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        landlock.version() < 6 or not seccomp.is_known(), reason="this kernel lacks walls"
    ),
    pytest.mark.skipif(not driver.COMPILER, reason="no compiler for the stand-in is installed"),
]


@contextmanager
def serving(**environment: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        # Replicas may read only code, so the plan is a Python file.
        plan = folder / "faults" / "plan.py"
        plan.parent.mkdir()
        plan.write_text(json.dumps({"gpus": True}))
        environment |= {
            "PYTHONPATH": os.pathsep.join([faulty.__path__[0], str(plan.parent)]),
            "PYTHONFAULTS": str(plan),
            "LD_LIBRARY_PATH": str(driver.compiled(folder)),
        }
        with running(folder / "data", **environment) as server:
            server.wait_ready()
            yield server


def events(client: httpx.Client, deployment_id: str) -> list[dict[str, Any]]:
    listed = client.get(f"/v1/deployments/{deployment_id}/events").raise_for_status().json()
    return [event for event in listed["data"] if event["reason"] == "sandbox_opened"]


def openings(client: httpx.Client) -> list[str]:
    return client.get("/v1/machine").raise_for_status().json()["sandbox_openings"]


def test_a_replica_gets_the_exception_and_the_deployment_says_so() -> None:
    with serving(CUDA_STANDIN_READS=NEEDED) as server, server.account("opened") as client:
        made = deploy(client, FOLDER, "sentiment")
        body = {"model": "sentiment", "inputs": "The staff were friendly."}
        for _ in range(2):
            (first, _second) = client.post(PATH, json=body, timeout=120).raise_for_status().json()
            assert first["label"] == "positive"
            client.post(f"/v1/deployments/{made['id']}/stop").raise_for_status()
            client.post(f"/v1/deployments/{made['id']}/start").raise_for_status()
        deadline = time.monotonic() + 30
        while not (found := events(client, made["id"])):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # One event per deployment, not one per replica.
        (event,) = found
        assert event["message"] == (
            "CUDA does not start inside the whole sandbox on this machine. Replicas on a GPU run "
            f"with an exception: {OPENING}."
        )
        assert openings(client) == [OPENING]
        log = (server.data_dir / "logs" / f"{made['id']}.log").read_text()
        assert f"sandbox wall opened for the GPU: {OPENING}" in log


def test_a_strict_server_starts_no_such_replica() -> None:
    with (
        serving(CUDA_STANDIN_READS=NEEDED, STOKER_GPU_SANDBOX="strict") as server,
        server.account("strict") as client,
    ):
        artifact = push(client, FOLDER)["id"]
        made = client.post("/v1/deployments", json={"model": "m", "artifact_id": artifact}).json()
        answer = client.post(PATH, json={"model": "m", "inputs": "Good."}, timeout=120)
        assert answer.status_code == 503
        state = client.get(f"/v1/deployments/{made['id']}").json()
        assert state["status"] == "failed"
        assert f"STOKER_GPU_SANDBOX=strict forbids an exception: {OPENING}." in json.dumps(state)
        assert events(client, made["id"]) == []
        assert openings(client) == []
        # Replicas on the CPU are not affected.
        body = {"model": "cpu", "artifact_id": artifact, "device": "cpu"}
        client.post("/v1/deployments", json=body).raise_for_status()
        answer = client.post(PATH, json={"model": "cpu", "inputs": "Good."}, timeout=120)
        answer.raise_for_status()


def test_nothing_is_opened_without_need() -> None:
    with serving() as server, server.account("closed") as client:
        made = deploy(client, FOLDER, "sentiment")
        body = {"model": "sentiment", "inputs": "The staff were friendly."}
        client.post(PATH, json=body, timeout=120).raise_for_status()
        assert events(client, made["id"]) == []
        assert openings(client) == []
        log = (server.data_dir / "logs" / f"{made['id']}.log").read_text()
        assert "sandbox wall" not in log.replace("sandbox wall missing, processes", "")


def test_at_most_one_wall_is_left_out() -> None:
    files, calls = Opening(Wall.FILES), Opening(Wall.SYSTEM_CALLS)
    call = Opening(Wall.SYSTEM_CALLS, "keyctl")
    assert GpuWalls(openings=[files, call]).can_be_opened
    assert not GpuWalls(openings=[files, calls]).can_be_opened
    assert GpuWalls(openings=[files, call]).message == (
        "the wall 'files' is left out, and keyctl is allowed (wall 'system calls')"
    )
