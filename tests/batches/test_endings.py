"""Ends of batches in an app whose clock and replicas the test controls."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from stoker.base.errors import CapacityError, RateLimitError
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources
from stoker.server.resources import RESOURCES
from stoker.store import db
from stoker.store.tables.batches import Batch, BatchPart
from stoker.store.tables.usage import UsageCount
from stoker.tenancy.usage.metering import Metering
from stoker.workloads.batches import resource
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.parts import BLOBS
from tests.batches.support import EMBEDDINGS, ENDED, MODELS, by_id, embedding_lines, jsonl, line
from tests.support.app import App, serving

ENCODER = MODELS / "tiny-encoder"


class Clock:
    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return db.now() + self.ahead


def with_clock(clock: Clock) -> Resources:
    """Returns the resources of a server whose batches use another clock."""

    def context(parts: ServerParts) -> BatchContext:
        return replace(resource._context(parts), clock=clock)  # pyright: ignore[reportPrivateUsage]

    changed = replace(resource.RESOURCE, parts=[context])
    return Resources(tuple(changed if one is resource.RESOURCE else one for one in RESOURCES))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def app(tmp_path: Path, clock: Clock) -> AsyncIterator[App]:
    settings = {"source_dirs": [ENCODER], "batch_lines_at_once": 2}
    async with serving(tmp_path / "data", with_clock(clock), **settings) as app:
        yield app


@pytest.fixture
async def client(app: App) -> httpx.AsyncClient:
    client = await app.account()
    body = {"model": "embed", "source": str(ENCODER)}
    (await client.post("/v1/deployments", json=body)).raise_for_status()
    return client


async def created(client: httpx.AsyncClient, lines: list[dict[str, Any]]) -> str:
    files = {"file": ("input.jsonl", jsonl(lines))}
    uploaded = await client.post("/v1/files", files=files, data={"purpose": "batch"})
    body = {
        "input_file_id": uploaded.raise_for_status().json()["id"],
        "endpoint": EMBEDDINGS,
        "completion_window": "24h",
    }
    return (await client.post("/v1/batches", json=body)).raise_for_status().json()["id"]


async def state(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    return (await client.get(f"/v1/batches/{batch_id}")).raise_for_status().json()


async def some_done(client: httpx.AsyncClient, batch_id: str) -> None:
    async with asyncio.timeout(60):
        while not (await state(client, batch_id))["request_counts"]["completed"]:
            await asyncio.sleep(0.05)


async def ended(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (batch := await state(client, batch_id))["status"] not in ENDED:
            await asyncio.sleep(0.05)
    return batch


async def lines_of(client: httpx.AsyncClient, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    content = (await client.get(f"/v1/files/{file_id}/content")).raise_for_status().content
    return by_id([json.loads(item) for item in content.splitlines()])


async def test_expiry_keeps_the_answers_so_far(
    app: App, client: httpx.AsyncClient, clock: Clock
) -> None:
    lines = embedding_lines(5000)
    batch_id = await created(client, lines)
    await some_done(client, batch_id)
    clock.ahead = timedelta(hours=24, seconds=1)
    batch = await ended(client, batch_id)
    assert batch["status"] == "expired" and batch["expired_at"]
    outputs = await lines_of(client, batch["output_file_id"])
    errors = await lines_of(client, batch["error_file_id"])
    assert outputs and errors and not outputs.keys() & errors.keys()
    assert {*outputs, *errors} == {item["custom_id"] for item in lines}
    assert {answer["error"]["code"] for answer in errors.values()} == {"batch_expired"}
    assert {answer["response"] for answer in errors.values()} == {None}
    counts = {"total": 5000, "completed": len(outputs), "failed": len(errors)}
    assert batch["request_counts"] == counts
    async with app.platform.database.reading() as session:
        requests = await session.scalar(select(func.sum(UsageCount.requests)))
        assert await session.scalar(select(func.count()).select_from(BatchPart)) == 0
    assert requests == len(outputs)
    assert await app.platform.blobs.keys(BLOBS) == []


async def test_calls_outside_of_batches_are_still_counted(
    app: App, client: httpx.AsyncClient
) -> None:
    batch = await ended(client, await created(client, embedding_lines(10)))
    assert batch["status"] == "completed"
    body = {"model": "embed", "input": "text"}
    (await client.post(EMBEDDINGS, json=body)).raise_for_status()
    await app.parts.get(Metering).tick()
    async with app.platform.database.reading() as session:
        requests = (await session.scalars(select(UsageCount.requests))).all()
    assert sorted(requests) == [1, 10]
    report = (await client.get("/v1/usage?group_by=tier")).raise_for_status().json()
    assert {row["tier"]: row["requests"] for row in report["data"] if row["requests"]} == {
        "default": 1,
        "flex": 10,
    }


class Failing:
    """Makes the calls of an app fail a number of times."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        self.always: dict[str, Exception] = {}
        self.calls = 0
        runtime = app.platform.runtime
        call = runtime.call

        async def failing(spec_id: str, call_: Any, **options: Any) -> bytes:
            self.calls += 1
            text = str(getattr(call_, "items", ""))
            for word, error in self.always.items():
                if word in text:
                    raise error
            if self.errors:
                raise self.errors.pop()
            return await call(spec_id, call_, **options)

        monkeypatch.setattr(runtime, "call", failing)


async def test_errors_that_pass_are_retried(
    app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(app, monkeypatch)
    failing.errors = [RateLimitError(code="queue_full"), CapacityError(), CapacityError()]
    batch = await ended(client, await created(client, embedding_lines(4)))
    assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    assert failing.calls == 7


async def test_a_line_that_loses_its_worker_each_time_fails_alone(
    app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.workloads.batches.line_calls._RETRY_FIRST_S", 0.01)
    failing = Failing(app, monkeypatch)
    failing.always["poison"] = CapacityError()
    lines = [*embedding_lines(4), line("bad", EMBEDDINGS, model="embed", input="poison")]
    batch = await ended(client, await created(client, lines))
    assert batch["request_counts"] == {"total": 5, "completed": 4, "failed": 1}
    errors = await lines_of(client, batch["error_file_id"])
    assert errors["bad"]["response"]["status_code"] == 503
    assert errors["bad"]["response"]["body"]["error"]["code"] == "worker_lost"
    assert failing.calls == 4 + 5


async def test_a_store_that_fails_delays_the_batch(
    app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failures = app.platform.blobs.put, [OSError(5, "no such disk")] * 2

    async def failing(key: str, content: bytes, content_type: str) -> None:
        if key.startswith(BLOBS) and failures:
            raise failures.pop()
        await put(key, content, content_type)

    monkeypatch.setattr(app.platform.blobs, "put", failing)
    batch = await ended(client, await created(client, embedding_lines(5)))
    assert batch["status"] == "completed" and not failures


async def test_the_deletion_of_an_account_ends_its_batches(
    app: App, client: httpx.AsyncClient
) -> None:
    batch_id = await created(client, embedding_lines(5000))
    await some_done(client, batch_id)
    assert await app.platform.blobs.keys(BLOBS)
    async with app.client(app.operator_key) as operator:
        path = f"/v1/accounts/{client.account_id}"  # type: ignore[attr-defined]
        (await operator.delete(path)).raise_for_status()
    async with app.platform.database.reading() as session:
        for table in (Batch, BatchPart):
            assert await session.scalar(select(func.count()).select_from(table)) == 0
    assert await app.platform.blobs.keys(BLOBS) == []


async def test_a_server_that_took_the_lease_makes_late_answers_void(
    app: App, client: httpx.AsyncClient
) -> None:
    """A worker that has lost its lease adds no part, and leaves no bytes."""
    batch_id = await created(client, embedding_lines(3000))
    await some_done(client, batch_id)
    async with app.platform.database.transaction() as session:
        row = await session.get(Batch, batch_id, with_for_update=True)
        assert row
        row.lock_token, row.lock_expires_at = "of another", db.now() + timedelta(seconds=4)
    batch = await ended(client, batch_id)
    assert batch["request_counts"] == {"total": 3000, "completed": 3000, "failed": 0}
    assert len(await lines_of(client, batch["output_file_id"])) == 3000
    async with app.platform.database.reading() as session:
        assert await session.scalar(select(func.sum(UsageCount.requests))) == 3000
    assert await app.platform.blobs.keys(BLOBS) == []
