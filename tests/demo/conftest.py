"""A `stoker demo` in the users' environment, shared by all tests that leave it intact."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.support import bert
from tests.support.server import USERS, WITHOUT_MODELS, Server, running
from tools.stand_ins.model_hub import ModelHub, model_hub

HUB_MODEL = "tests/tagger"


@pytest.fixture(scope="session")
def first_state(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Runs a demo once. Returns its data folder and the contents of its demo.json."""
    data_dir = tmp_path_factory.mktemp("demo") / ".data"
    with running(data_dir, "demo", python=USERS, **WITHOUT_MODELS) as server:
        return data_dir, json.loads((server.data_dir / "demo.json").read_text())


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
