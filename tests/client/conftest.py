from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import stoker.demo
from stoker.client import Stoker
from tests.cli.conftest import cli, tagger
from tests.client.editing_proxy import EditingProxy, editing
from tests.support.server import Server

__all__ = ["cli", "tagger"]

MODELS = Path(stoker.demo.__file__).parent / "models"
MEDIA = Path(stoker.demo.__file__).parent / "media"
GOOD, BAD = "The food was great.", "The food was not good at all."


def new_key(server: Server, name: str = "client") -> str:
    """Returns the key of a new account."""
    with server.account(name) as client:
        return client.headers["authorization"].removeprefix("Bearer ")


@dataclass(frozen=True)
class Reached:
    """A server and the key of an account with models."""

    base_url: str
    key: str

    def stoker(self, base_url: str | None = None, max_retries: int = 4) -> Stoker:
        return Stoker(base_url=base_url or self.base_url, api_key=self.key, max_retries=max_retries)


def deploy(stoker: Stoker, name: str) -> str:
    """Pushes and deploys one of the demo's models, and returns the id of the ready deployment."""
    artifact = stoker.artifacts.push(MODELS / name)
    deployment = stoker.deployments.create(model=name, artifact_id=artifact.id, readiness="warm")
    return stoker.deployments.wait(deployment.id).id


@pytest.fixture(scope="session")
def reached(server: Server) -> Reached:
    """An account with a classifier of texts, one of images, and a chat model."""
    server.wait_ready()
    reached = Reached(server.base_url, new_key(server))
    with reached.stoker() as stoker:
        for name in ("tiny-sentiment", "tiny-digits", "tiny-chat"):
            deploy(stoker, name)
    return reached


@pytest.fixture
def proxy(reached: Reached) -> Iterator[EditingProxy]:
    with editing(reached.base_url) as proxy:
        yield proxy


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the client's variables from the environment."""
    for name in ("STOKER_BASE_URL", "STOKER_API_KEY", "STOKER_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
