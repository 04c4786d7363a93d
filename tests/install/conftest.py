"""Compares a server in the users' environment with the engines in the tests' environment.

If a task's stages answer whole requests, they run in this process. A second deployment would cost
more than the rest of a test. Other tasks use a second server.
"""

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers

from stoker.media.media import Media
from stoker.models.tasks.registry import TASKS
from tests.install.families import Build
from tests.support.compare import equal
from tests.support.deploying import push
from tests.support.local import Local
from tests.support.server import INSTALLED, USERS, Server, running

MODEL = "model"
TYPES = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
READY_S = 120
BY_PATH = {task.path: task for task in TASKS.values()}
RUNS = pytest.mark.skipif(
    not INSTALLED.exists(),
    reason="make install-alone makes the environment",
)


@pytest.fixture(scope="session")
def users_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("users") / "data", python=USERS) as server:
        yield server


@pytest.fixture(scope="session")
def users(users_server: Server, server: Server) -> Iterator[httpx.Client]:
    """Yields a client of the server in the users' environment."""
    for started_server in (users_server, server):
        started_server.wait_ready()
    with users_server.account("users") as client:
        yield client


@pytest.fixture(scope="session")
def ours(server: Server) -> Iterator[httpx.Client]:
    """Yields a client of the server in the tests' environment."""
    with server.account("install") as client:
        yield client


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def compared(
    users: httpx.Client, ours: httpx.Client, pool: ThreadPoolExecutor, tmp_path: Path
) -> Callable[[Build, str, str, Any], Any]:
    """Returns a function that compares the answers of both environments, which compute them at the
    same time.
    """

    def compare(build: Build, pipeline: str, path: str, asked: Any) -> Any:
        transformers.set_seed(1)
        build(tmp_path)

        def ask(client: httpx.Client) -> Any:
            artifact = push(client, tmp_path, **({"pipeline": pipeline} if pipeline else {}))
            return answer(client, artifact, path, asked)

        theirs = pool.submit(ask, users)
        expected = answer_here(tmp_path, path, asked) if path in BY_PATH else ask(ours)
        if isinstance(expected, bytes):
            assert theirs.result() == expected
        else:
            equal(theirs.result(), expected)
        return expected

    return compare


def answer_here(folder: Path, path: str, asked: Mapping[str, Any]) -> Any:
    """Returns the answer of the task's stages and engine in this process."""
    task = BY_PATH[path]
    local = Local(task.pipeline, folder)
    try:
        result = steady(local.ask(asked, task.name))
        return (
            {**result, "model": MODEL} if isinstance(result, dict) and "model" in result else result
        )
    finally:
        local.close()


def sent(value: Any) -> Any:
    """Returns a body as JSON, with its media inline."""
    if isinstance(value, Media):
        encoded = base64.b64encode(value.content or b"").decode()
        return f"data:{TYPES[value.kind]};base64,{encoded}"
    if isinstance(value, Mapping):
        return {name: sent(item) for name, item in value.items()}
    if isinstance(value, list):
        return [sent(item) for item in value]
    return value


def answer(client: httpx.Client, artifact: Mapping[str, Any], path: str, asked: Any) -> Any:
    """Returns the answer of a deployment of the artifact. Deletes the deployment afterwards."""
    made = {"model": MODEL, "artifact_id": artifact["id"], "engine": "auto"}
    deployment = client.post("/v1/deployments", json=made).raise_for_status().json()
    try:
        body = {"model": MODEL, **sent(asked)}
        response = client.post(path, json=body, headers={"prefer": f"wait={READY_S}"})
        assert response.status_code == 200, response.text
        if path == "/v1/videos":
            return film(client, response.json()["id"])
        if response.headers["content-type"].startswith("application/json"):
            return steady(response.json())
        return response.content
    finally:
        client.delete(f"/v1/deployments/{deployment['id']}").raise_for_status()


def film(client: httpx.Client, identifier: str) -> bytes:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        job = client.get(f"/v1/videos/{identifier}").json()
        if job["status"] in ("completed", "failed"):
            break
        time.sleep(0.05)
    assert job["status"] == "completed", job
    return client.get(f"/v1/videos/{identifier}/content").raise_for_status().content


def steady(found: Any) -> Any:
    """Returns an answer without the parts that differ between calls."""
    if not isinstance(found, dict):
        return found
    return {name: value for name, value in found.items() if name not in ("created", "id")}
