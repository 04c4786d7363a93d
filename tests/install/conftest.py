"""A server in the environment that users have, beside the engines in the environment of the tests.

Where a task's stages answer whole requests, they do so in this process: a second deployment would
cost more than all else of a test. For the others there is a second server.
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
    """A client of the server in the users' environment."""
    for one in (users_server, server):
        one.wait_ready()
    with users_server.account("users") as client:
        yield client


@pytest.fixture(scope="session")
def ours(server: Server) -> Iterator[httpx.Client]:
    """A client of the server in the environment of the tests."""
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
    """Has the answers of both environments compared, which find them at the same time."""

    def compare(build: Build, pipeline: str, path: str, asked: Any) -> Any:
        transformers.set_seed(1)
        build(tmp_path)

        def ask(client: httpx.Client) -> Any:
            artifact = push(client, tmp_path, **({"pipeline": pipeline} if pipeline else {}))
            return answer(client, artifact, path, asked)

        theirs = pool.submit(ask, users)
        own = answer_here(tmp_path, path, asked) if path in BY_PATH else ask(ours)
        if isinstance(own, bytes):
            assert theirs.result() == own
        else:
            equal(theirs.result(), own)
        return own

    return compare


def answer_here(folder: Path, path: str, asked: Mapping[str, Any]) -> Any:
    """What the task's stages and their engine answer in this process."""
    task = BY_PATH[path]
    local = Local(task.pipeline, folder)
    try:
        found = steady(local.ask(asked, task.name))
        return {**found, "model": MODEL} if isinstance(found, dict) and "model" in found else found
    finally:
        local.close()


def sent(value: Any) -> Any:
    """A body as JSON, its media in it."""
    if isinstance(value, Media):
        encoded = base64.b64encode(value.content or b"").decode()
        return f"data:{TYPES[value.kind]};base64,{encoded}"
    if isinstance(value, Mapping):
        return {name: sent(one) for name, one in value.items()}
    if isinstance(value, list):
        return [sent(one) for one in value]
    return value


def answer(client: httpx.Client, artifact: Mapping[str, Any], path: str, asked: Any) -> Any:
    """What a deployment of the artifact says, which is there no longer than needed."""
    made = {"model": MODEL, "artifact_id": artifact["id"], "engine": "auto"}
    deployment = client.post("/v1/deployments", json=made).raise_for_status().json()
    try:
        given = {"model": MODEL, **sent(asked)}
        response = client.post(path, json=given, headers={"prefer": f"wait={READY_S}"})
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
    """An answer without what differs from call to call."""
    if not isinstance(found, dict):
        return found
    return {name: value for name, value in found.items() if name not in ("created", "id")}
