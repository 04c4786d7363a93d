"""Smoke tests: one short file per resource, on one real server with the demo's models.

`make test` runs them. The thorough tests of each resource are in the other folders.
"""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.agents.conftest import MODELS
from tests.support.deploying import deploy
from tests.support.server import Server


@pytest.fixture(scope="session")
def smoke(restartable: Server) -> Iterator[httpx.Client]:
    """An account's client."""
    with restartable.account("smoke") as client:
        yield client


@pytest.fixture(scope="session")
def deployed(smoke: httpx.Client) -> Callable[[str], dict[str, Any]]:
    """Returns the deployment of a demo model, which is pushed at the first call."""
    deployments: dict[str, dict[str, Any]] = {}

    def deployed(name: str) -> dict[str, Any]:
        if name not in deployments:
            deployments[name] = deploy(smoke, MODELS / name, name)
        return deployments[name]

    return deployed


@pytest.fixture(scope="session")
def sdk(restartable: Server, smoke: httpx.Client) -> Iterator[openai.OpenAI]:
    key = smoke.headers["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{restartable.base_url}/v1", api_key=key) as sdk:
        yield sdk
