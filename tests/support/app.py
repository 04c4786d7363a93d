"""Runs the whole app in the test process, so that tests can observe and delay it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from stoker.base.config import Settings
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Scope
from stoker.server.app import create_app
from stoker.server.lifecycle import running
from stoker.server.resources import RESOURCES
from stoker.tenancy.keys import service as keys
from stoker.tenancy.keys.schemas import KeyCreate
from tests.support.contract import check
from tests.support.server import NO_HUB


@dataclass
class App:
    app: FastAPI
    parts: ServerParts
    operator_key: str

    @property
    def platform(self) -> Platform:
        return self.parts.get(Platform)

    def client(self, key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://stoker",
            headers={"authorization": f"Bearer {key}"},
            event_hooks={"response": [_checked]},
        )

    async def account(self, name: str = "test") -> httpx.AsyncClient:
        """Returns a client with a new account's key."""
        async with self.client(self.operator_key) as operator:
            made = await operator.post("/v1/accounts", json={"name": name})
            account_id = made.raise_for_status().json()["id"]
            body = {"scope": "account", "account_id": account_id}
            key = await operator.post("/v1/api-keys", json=body)
        client = self.client(key.raise_for_status().json()["key"])
        client.account_id = account_id  # type: ignore[attr-defined]
        return client


@contextlib.asynccontextmanager
async def serving(
    data_dir: Path, resources: Resources = RESOURCES, **settings: Any
) -> AsyncIterator[App]:
    """Runs the app with the tests' own runtime, which loads a model on its first call."""
    chosen = {
        "runtime": "tests.runtime.in_process:InProcessRuntime",
        "hub_endpoint": NO_HUB["STOKER_HUB_ENDPOINT"],
        **settings,
    }
    app = create_app(Settings(data_dir=data_dir, **chosen), resources)
    parts: ServerParts = app.state.parts
    async with running(parts):
        async with parts.get(Platform).database.transaction() as session:
            # If several tests share a database, it already has an operator key, but its secret is
            # unknown.
            key, secret = keys.issue(session, None, KeyCreate(scope=Scope.OPERATOR))
        yield App(app, parts, keys.whole(key, secret))


async def _checked(response: httpx.Response) -> None:
    await response.aread()
    check(response)
