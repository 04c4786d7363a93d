"""Code that would leave forks without CUDA is not preloaded, and its deployments get an event."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from tests.support import faulty
from tests.support.deploying import deploy
from tests.support.server import Server, running

pytestmark = pytest.mark.release

MODELS = Path(stoker.demo.__file__).parent / "models"
WHY = "torch has initialised CUDA in the engine host"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yields a separate server whose engine host skips each preload."""
    folder = tmp_path_factory.mktemp("skipping")
    # Replicas may read only code, so the plan is a Python file.
    plan = folder / "faults" / "plan.py"
    plan.parent.mkdir()
    plan.write_text(json.dumps({"preloads": WHY}))
    path = os.pathsep.join([faulty.__path__[0], str(plan.parent)])
    with running(folder / "data", PYTHONPATH=path, PYTHONFAULTS=str(plan)) as server:
        server.wait_ready()
        yield server


def skipped(client: httpx.Client, identifier: str) -> list[dict[str, Any]]:
    events = client.get(f"/v1/deployments/{identifier}/events").raise_for_status().json()["data"]
    return [event for event in events if event["reason"] == "preload_skipped"]


def wait_skipped(client: httpx.Client, identifier: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not (events := skipped(client, identifier)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (event,) = events
    return event


def test_deployments_with_the_code_get_an_event(server: Server) -> None:
    with server.account("skipping") as client:
        first = deploy(client, MODELS / "tiny-sentiment", "first")
        event = wait_skipped(client, first["id"])
        assert event["status"] == "idle"
        assert WHY in event["message"]
        assert "The code of 'bert' is not imported ahead of time" in event["message"]
        # A later deployment with the same code gets its own event.
        second = deploy(client, MODELS / "tiny-sentiment", "second")
        wait_skipped(client, second["id"])
        assert len(skipped(client, first["id"])) == 1
        # The replica imports the code itself.
        body = {"model": "first", "inputs": "The staff were friendly."}
        answer = client.post("/v1/classifications/text", json=body, timeout=120)
        assert answer.raise_for_status().json()[0]["label"] == "positive"
