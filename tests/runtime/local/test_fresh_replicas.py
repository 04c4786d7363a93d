"""Replicas on GPUs are fresh processes if forks of the engine host cannot use CUDA."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import stoker.demo
from tests.support import faulty
from tests.support.deploying import deploy, deployment, wait_for
from tests.support.server import Server, running

pytestmark = pytest.mark.release

FOLDER = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PATH = "/v1/classifications/text"
WHY = "torch has initialised CUDA in the engine host"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a separate server whose engine host reports that forks cannot use CUDA."""
    folder = tmp_path_factory.mktemp("fresh")
    # Replicas may read only code, so the plan is a Python file.
    plan = folder / "faults" / "plan.py"
    plan.parent.mkdir()
    plan.write_text(json.dumps({"forks": WHY}))
    path = os.pathsep.join([faulty.__path__[0], str(plan.parent)])
    with running(folder / "data", PYTHONPATH=path, PYTHONFAULTS=str(plan)) as server:
        server.wait_ready()
        yield server


def test_a_fresh_replica_answers_like_a_fork(server: Server) -> None:
    with server.account("fresh") as client:
        made = deploy(client, FOLDER, "sentiment")
        body = {"model": "sentiment", "inputs": "The staff were friendly."}
        (first, second) = client.post(PATH, json=body, timeout=120).raise_for_status().json()
        assert (first["label"], second["label"]) == ("positive", "negative")
        assert first["score"] > 0.9
        (worker,) = deployment(client, made["id"])["workers"]
        replica = psutil.Process(worker["pid"])
        assert "stoker.replica.fresh" in replica.cmdline()
        # It is the engine host's child, so it ends with the host.
        host = replica.parent()
        assert host is not None and "stoker.replica.host" in host.cmdline()

        client.post(f"/v1/deployments/{made['id']}/stop").raise_for_status()
        wait_for(client, made["id"], "stopped")
        assert replica.wait(timeout=30) is None or not replica.is_running()

        # A killed replica is replaced.
        client.post(f"/v1/deployments/{made['id']}/start").raise_for_status()
        client.post(PATH, json=body, timeout=120).raise_for_status()
        (worker,) = deployment(client, made["id"])["workers"]
        psutil.Process(worker["pid"]).kill()
        assert client.post(PATH, json=body, timeout=120).raise_for_status().json() == [
            first,
            second,
        ]

        warnings = [line for line in server.log.read_text().splitlines() if WHY in line]
        assert warnings and '"level": "warning"' in warnings[0]
        assert "replicas on GPUs start as fresh processes" in warnings[0]

        host.kill()
        assert psutil.wait_procs([host], timeout=30)[1] == []
        assert client.post(PATH, json=body, timeout=120).raise_for_status().json() == [
            first,
            second,
        ]
