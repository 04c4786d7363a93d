"""The API key that a run's calls use, and the wait for that key's requests per minute."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from stoker.base.errors import InvalidAPIKeyError
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.step import caller_of
from tests.support.app import App, serving


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with serving(tmp_path / "data") as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with await app.account() as client:
        yield client


async def test_l7_run_that_waits_notices_that_its_key_was_revoked(
    app: App, client: httpx.AsyncClient
) -> None:
    body = {"scope": "account", "requests_per_minute": 1}
    made = (await client.post("/v1/api-keys", json=body)).raise_for_status().json()
    public_id, account_id = made["key"].split("-")[1], client.account_id  # type: ignore[attr-defined]
    context = app.parts.get(AgentContext)
    assert (await caller_of(context, public_id, account_id)).account_id == account_id
    # The key's requests are used up for a minute.
    waiting = asyncio.create_task(caller_of(context, public_id, account_id))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    (await client.delete(f"/v1/api-keys/{made['id']}")).raise_for_status()
    async with asyncio.timeout(10):
        with pytest.raises(InvalidAPIKeyError):
            await waiting
