from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.deployments.support import upload
from tests.support.server import Server


@dataclass
class Account:
    """An account with a ready artifact."""

    server: Server
    client: httpx.Client
    artifact_id: str


@pytest.fixture(scope="session")
def own_server(restartable: Server) -> Server:
    return restartable


@pytest.fixture(scope="module")
def account(own_server: Server) -> Iterator[Account]:
    with own_server.account() as client:
        yield Account(own_server, client, upload(own_server, client))
