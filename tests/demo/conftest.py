"""A `stoker demo` in the users' environment, shared by all tests that leave it intact."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.server.banner import END
from tests.deployments.support import bert
from tests.support.checkout import linked
from tests.support.doc_runs import block_of
from tests.support.server import (
    NO_HUB,
    ON_NODES,
    ONE_THREAD,
    USERS,
    WITHOUT_MODELS,
    Server,
    running,
)
from tools.stand_ins.model_hub import ModelHub, model_hub

HUB_MODEL = "tests/tagger"
_TIMEOUT_S = 180


def make_demo(folder: Path) -> None:
    """Runs the README's command in a checkout until all models are deployed."""
    linked(folder)
    command = shlex.split(block_of("README.md", "make demo").text)
    env = {**os.environ, **ONE_THREAD, **NO_HUB, **WITHOUT_MODELS, "STOKER_PORT": "0"}
    log = folder / "make.log"
    with log.open("wb") as output:
        made = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        # The command prints this last.
        while END not in log.read_text():
            assert made.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        state = json.loads((folder / ".data" / "demo.json").read_text())
        headers = {"authorization": f"Bearer {state['account_key']}"}
        answer = httpx.get(f"{state['base_url']}/v1/models", headers=headers).raise_for_status()
        assert {model["id"] for model in answer.json()["data"]} == {*state["deployments"]}
    finally:
        # make ends the server and waits for it.
        made.terminate()
        made.wait(_TIMEOUT_S)


@pytest.fixture(scope="session")
def first_state(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Runs a demo once. Returns its data folder and the contents of its demo.json."""
    data_dir = tmp_path_factory.mktemp("demo") / ".data"
    if ON_NODES:
        # The later demo needs the same database.
        with running(data_dir, "demo", python=USERS, **WITHOUT_MODELS):
            pass
    else:
        make_demo(data_dir.parent)
    return data_dir, json.loads((data_dir / "demo.json").read_text())


@pytest.fixture(scope="session")
def hub() -> Iterator[ModelHub]:
    """Provides a model hub with one model, from which the demo imports."""
    with model_hub() as stand_in:
        stand_in.put(HUB_MODEL, bert())
        yield stand_in


@pytest.fixture(scope="session")
def demo(first_state: tuple[Path, dict[str, Any]], hub: ModelHub) -> Iterator[Server]:
    """Runs the demo a second time, with everything deployed already and the default number of
    threads.
    """
    env = {"STOKER_REPLICA_THREADS": "0", "STOKER_HUB_ENDPOINT": hub.endpoint}
    with running(first_state[0], "demo", python=USERS, **env) as server:
        yield server


@pytest.fixture(scope="session")
def state(demo: Server) -> dict[str, Any]:
    return json.loads((demo.data_dir / "demo.json").read_text())
