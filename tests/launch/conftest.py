"""A server with the scripted engine."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.launch.support import PLUGIN, long_model
from tests.support.deploying import push
from tests.support.server import Server, running


@pytest.fixture(scope="module")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("launch") / "data"
    with running(data_dir, PYTHONPATH=str(PLUGIN)) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_model(tmp_path_factory.mktemp("models") / "long-chat")


@pytest.fixture
def scripted_account(scripted_server: Server) -> Iterator[httpx.Client]:
    with scripted_server.account("launch") as client:
        yield client


@pytest.fixture
def artifact(scripted_account: httpx.Client, folder: Path) -> str:
    return push(scripted_account, folder)["id"]
