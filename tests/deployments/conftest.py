from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.deployments.support import bert, upload
from tests.support.server import Server, running


@dataclass
class Account:
    """An account with a ready artifact."""

    server: Server
    client: httpx.Client
    artifact_id: str


@pytest.fixture(scope="package")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as an operator names it: a model below it, and a link that leads out of it."""
    named = tmp_path_factory.mktemp("sources")
    outside = tmp_path_factory.mktemp("outside") / "model"
    outside.symlink_to(bert())
    (named / "tagger").mkdir()
    for file in bert().iterdir():
        (named / "tagger" / file.name).write_bytes(file.read_bytes())
    (named / "link").symlink_to(bert())
    (named / "empty").mkdir()
    return named


@pytest.fixture(scope="package")
def own_server(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Iterator[Server]:
    """A server that may be restarted, with a folder of models."""
    data_dir = tmp_path_factory.mktemp("deployments") / "data"
    with running(data_dir, STOKER_SOURCE_DIRS=f'["{sources}"]') as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def account(own_server: Server) -> Iterator[Account]:
    with own_server.account() as client:
        yield Account(own_server, client, upload(own_server, client))
