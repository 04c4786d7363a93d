"""Texts that an account stores count for its storage: checks, agents, and inputs of runs and
responses.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from tests.support.app import App, serving

MODELS = Path(stoker.demo.__file__).parent / "models"
LARGE = "x" * 40_000
LIMIT = 100_000
"""Storage limit in bytes, with room for two texts but not for three."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
async def app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[App]:
    settings: dict[str, Any] = {"source_dirs": [MODELS]}
    if request.param == "postgresql":
        settings["database_url"] = request.getfixturevalue("postgres_url")
    async with serving(tmp_path_factory.mktemp("texts") / "data", **settings) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    client = await app.account("texts")
    body = {"model": "chat", "source": str(MODELS / "tiny-chat")}
    made = (await client.post("/v1/deployments", json=body)).raise_for_status().json()
    client.headers["x-deployment"] = made["id"]
    quotas = {"quotas": {"storage_bytes": LIMIT}}
    account_id: str = client.account_id  # type: ignore[attr-defined]
    async with app.client(app.operator_key) as operator:
        (await operator.patch(f"/v1/accounts/{account_id}", json=quotas)).raise_for_status()
    yield client
    await client.aclose()


async def used(client: httpx.AsyncClient) -> int:
    return (await client.get("/v1/quotas")).json()["quotas"]["storage_bytes"]["used"]


def refused(answer: httpx.Response) -> None:
    assert answer.status_code == 413, answer.text
    assert answer.json()["error"]["code"] == "quota_exceeded"


async def test_checks(client: httpx.AsyncClient) -> None:
    place = f"/v1/deployments/{client.headers['x-deployment']}/checks"

    def body(texts: int) -> dict[str, Any]:
        request = {"messages": [{"role": "user", "content": LARGE}]}
        check = {"request": request, "expect": {"contains": "x"}}
        return {"checks": [{"name": str(number), **check} for number in range(texts)]}

    (await client.put(place, json=body(2))).raise_for_status()
    assert 80_000 < await used(client) < 82_000
    refused(await client.put(place, json=body(3)))
    # Storing the same text again uses no more storage.
    (await client.put(place, json=body(2))).raise_for_status()
    (await client.put(place, json=body(0))).raise_for_status()
    assert await used(client) < 100


async def test_agents(client: httpx.AsyncClient) -> None:
    body = {"name": "a", "model": "chat", "instructions": LARGE}
    first = (await client.post("/v1/agent", json=body)).raise_for_status().json()["id"]
    second = (await client.post("/v1/agent", json=body)).raise_for_status().json()["id"]
    refused(await client.post("/v1/agent", json=body))
    refused(await client.patch(f"/v1/agent/{first}", json={"instructions": 2 * LARGE}))
    short = {"instructions": "short"}
    (await client.patch(f"/v1/agent/{first}", json=short)).raise_for_status()
    assert 40_000 < await used(client) < 41_000
    (await client.delete(f"/v1/agent/{second}")).raise_for_status()
    assert await used(client) < 1_000


async def test_runs(client: httpx.AsyncClient) -> None:
    agent = {"name": "a", "model": "chat"}
    place = (await client.post("/v1/agent", json=agent)).raise_for_status().json()["id"]
    runs = f"/v1/agent/{place}/runs"
    made = [await client.post(runs, json={"input": LARGE}) for _ in range(3)]
    assert [response.status_code for response in made[:2]] == [201, 201], made[0].text
    refused(made[2])
    assert await used(client) > 80_000
    (await client.delete(f"{runs}/{made[0].json()['id']}")).raise_for_status()
    (await client.post(runs, json={"input": LARGE})).raise_for_status()


async def test_background_responses(client: httpx.AsyncClient) -> None:
    async def ask(text: str, key: str) -> httpx.Response:
        body = {"model": "chat", "input": text, "background": True}
        return await client.post("/v1/responses", json=body, headers={"idempotency-key": key})

    # Each is stored with its own input, and with the input of its conversation.
    answers = await asyncio.gather(*(ask(LARGE, "first") for _ in range(8)))
    made = [answer.json()["id"] for answer in answers if answer.status_code == 200]
    assert len(set(made)) == 1
    for answer in answers:
        if answer.status_code != 200:
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                409,
                "idempotency_in_progress",
            )
    assert 80_000 < await used(client) < 85_000
    refused(await ask(LARGE, "second"))
    assert (await ask(LARGE, "first")).json()["id"] == made[0]
    mismatch = await ask("short", "first")
    assert mismatch.json()["error"]["code"] == "idempotency_mismatch"
    (await client.delete(f"/v1/responses/{made[0]}")).raise_for_status()
    assert await used(client) < 100
    assert (await ask(LARGE, "first")).raise_for_status().json()["id"] != made[0]
