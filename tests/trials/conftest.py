from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.deployments.support import DEPLOYMENTS, deploy, upload
from tests.support.server import Server


@pytest.fixture(scope="session")
def server(restartable: Server) -> Server:
    """Returns the server of the deployment tests, which run in the same process."""
    return restartable


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("trials") as client:
        yield client


@pytest.fixture(scope="module")
def artifact(server: Server, client: httpx.Client) -> str:
    return upload(server, client)


@pytest.fixture
def tagger(client: httpx.Client, artifact: str) -> Iterator[dict[str, Any]]:
    made = deploy(client, artifact, "tagger")
    yield made
    client.delete(f"{DEPLOYMENTS}/{made['id']}")
