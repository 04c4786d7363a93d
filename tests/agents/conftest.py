"""Fixtures: one real server with the demo's chat model, and a real tool server."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import stoker.demo
from tests.agents.lab import lab
from tests.agents.support import Account
from tests.support.databases import migrated, postgres_url
from tests.support.deploying import deploy, wait_for
from tests.support.server import Server
from tools.stand_ins.tool_servers import Tools, serving

__all__ = ["lab", "migrated", "postgres_url"]

MODELS = Path(stoker.demo.__file__).parent / "models"
MODEL = MODELS / "tiny-chat"


@pytest.fixture(scope="session")
def agent_server(restartable: Server) -> Server:
    return restartable


@pytest.fixture(scope="session")
def account(agent_server: Server) -> Iterator[Account]:
    with agent_server.account("agents") as client:
        yield prepared(client)


@pytest.fixture(scope="session")
def other(agent_server: Server) -> Iterator[Account]:
    """Another account with the same models."""
    with agent_server.account("others") as client:
        yield prepared(client)


def prepared(client: httpx.Client) -> Account:
    chat = deploy(client, MODEL, "chat", engine="torch", readiness="hot")
    deploy(client, MODELS / "tiny-ner", "ner")
    wait_for(client, chat["id"], "ready")
    return Account(client, chat["id"])


@pytest.fixture(scope="session")
def weather_tools() -> Iterator[Tools]:
    """A tool server that uses the official SDK."""
    with serving() as tools:
        yield tools
