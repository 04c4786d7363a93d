"""Created and deleted objects of all kinds leave nothing in memory, tables or files."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

import stoker.demo
from stoker.platform.parts import ServerParts
from stoker.registry.files import service as files
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.server.janitor import Janitor
from stoker.store import db
from stoker.store.db import Base
from stoker.store.tables.files import Purpose
from tests.support.app import App, serving
from tests.support.rows import video

MODELS = Path(stoker.demo.__file__).parent / "models"
MANY = 15
BILLED = {"usage_counts", "holdings", "transfers"}
"""Tables that keep their rows, because the bill consists of them."""
KEPT = {
    "_keys": "10,000 keys are remembered; those at rest are forgotten for more",
    "_rows": "what a deployment's calls came to this hour, until the hour was written down",
}
"""Containers, by the suffix of their place, that a deletion does not empty, with the reason."""
LATER = timedelta(days=40)
"""Time after which temporary records, such as the reason why an upload was closed, are deleted."""
CONTAINERS = (dict, list, set, deque)


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    # Uses the local runtime. No model is called, so that no process needs to be forked.
    monkeypatch.setattr(EngineHost, "start", lambda _self: None)
    async with serving(
        tmp_path / "data", runtime="local", source_dirs=[MODELS], preload=False
    ) as app:
        yield app


class Sight:
    """Snapshot of rows, files, descriptors, threads, tasks and container sizes."""

    def __init__(self, rows: Counter[str], app: App, data_dir: Path) -> None:
        self.rows = rows
        self.files = sorted(str(path.relative_to(data_dir)) for path in data_dir.rglob("*"))
        self.descriptors = len(list(Path("/proc/self/fd").iterdir()))
        self.threads = threading.active_count()
        self.tasks = len(asyncio.all_tasks())
        self.sizes = sizes(app.parts)

    @classmethod
    async def of(cls, app: App) -> "Sight":
        janitor = Janitor(app.parts)
        await janitor.sweep(db.now() + LATER)
        async with app.platform.database.reading() as session:
            rows = Counter[str]()
            for name, table in Base.metadata.tables.items():
                count = await session.scalar(select(func.count()).select_from(table))
                rows[name] = count or 0
        return cls(rows, app, app.platform.settings.data_dir)


def sizes(parts: ServerParts) -> dict[str, int]:
    """Returns the sizes of all containers that Stoker's objects hold, by the place of each
    container.
    """
    lengths: dict[str, int] = {}
    visited: set[int] = set()
    pending: list[tuple[str, Any]] = [(kind.__name__, part) for kind, part in parts._parts.items()]
    assert len(pending) > 30
    while pending:
        where, item = pending.pop()
        if id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, CONTAINERS):
            lengths[where] = len(item)
            children = item.values() if isinstance(item, dict) else item
            pending += [(f"{where}[]", value) for value in list(children)]
        elif type(item).__module__.startswith("stoker."):
            names = [*getattr(item, "__dict__", {}), *getattr(type(item), "__slots__", ())]
            pending += [(f"{where}.{name}", getattr(item, name, None)) for name in names]
    return lengths


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


async def deleted(client: httpx.AsyncClient, path: str) -> None:
    (await client.delete(path)).raise_for_status()


async def live_and_die(app: App, client: httpx.AsyncClient, name: str) -> None:
    """Creates, uses and deletes objects of every kind."""
    source = str(MODELS / "tiny-chat")
    deployment = (await posted(client, "/v1/deployments", model=name, source=source))["id"]
    (await client.get(f"/v1/deployments/{deployment}/logs")).raise_for_status()
    narrow = await posted(
        client, "/v1/api-keys", deployment_ids=[deployment], requests_per_minute=1000
    )
    async with app.client(narrow["key"]) as caller:
        (await caller.get("/v1/models")).raise_for_status()
    (await client.post(f"/v1/deployments/{deployment}/stop")).raise_for_status()
    agent = (await posted(client, "/v1/agent", name=name, model=name))["id"]
    run = (await posted(client, f"/v1/agent/{agent}/runs", input="x"))["id"]
    path = f"/v1/agent/{agent}/runs/{run}"
    async with asyncio.timeout(30):
        while (await client.get(path)).json()["status"] != "failed":
            await asyncio.sleep(0.01)
    await deleted(client, path)
    await deleted(client, f"/v1/agent/{agent}")
    artifact = (await posted(client, "/v1/model-artifacts", display_name=name))["id"]
    uploads = f"/v1/model-artifacts/{artifact}/uploads"
    upload = (await posted(client, uploads))["upload_id"]
    (await client.put(f"{uploads}/{upload}/files/config.json", content=b"{}")).raise_for_status()
    (await client.post(f"{uploads}/{upload}/complete")).raise_for_status()
    await deleted(client, f"/v1/model-artifacts/{artifact}")
    await film(app, client, deployment)
    await deleted(client, f"/v1/api-keys/{narrow['id']}")
    await deleted(client, f"/v1/deployments/{deployment}")


async def film(app: App, client: httpx.AsyncClient, deployment: str) -> None:
    """Adds and deletes a video and a file, as if a model had made them."""
    platform, account_id = app.platform, client.account_id  # type: ignore[attr-defined]
    (file,) = await files.store(
        platform,
        account_id=account_id,
        deployment_id=deployment,
        purpose=Purpose.IMAGE,
        contents=[b"content"],
        content_type="image/png",
    )
    job = video(account_id, deployment, status="failed", tries=1)
    job_id = job.id
    async with platform.database.transaction() as session:
        session.add(job)
    await deleted(client, f"/v1/videos/{job_id}")
    await deleted(client, f"/v1/files/{file.id}")


async def at_rest(app: App) -> Sight:
    """Returns a snapshot once the background work is done and nothing has changed for a moment."""
    last = await Sight.of(app)
    while True:
        await asyncio.sleep(0.1)
        current = await Sight.of(app)
        if (current.files, current.tasks) == (last.files, last.tasks):
            return current
        last = current


async def settled(app: App, before: Sight) -> Sight:
    """Returns a snapshot once the background work is done, or after a timeout."""
    for _ in range(400):
        after = await Sight.of(app)
        if after.tasks <= before.tasks and after.files == before.files:
            break
        await asyncio.sleep(0.05)
    return after


async def test_l6_nothing_is_left(app: App) -> None:
    async with await app.account() as client:
        # Afterwards everything that is created only once exists, such as connections and caches.
        await asyncio.gather(*(live_and_die(app, client, f"first-{number}") for number in range(3)))
        before = await at_rest(app)
        await asyncio.gather(
            *(live_and_die(app, client, f"more-{number}") for number in range(MANY))
        )
        after = await settled(app, before)
    grown = {
        where: (before.sizes.get(where, 0), size)
        for where, size in after.sizes.items()
        if size >= before.sizes.get(where, 0) + MANY and not where.endswith(tuple(KEPT))
    }
    rows = {
        name: (before.rows[name], count)
        for name, count in after.rows.items()
        if count >= before.rows[name] + MANY and name not in BILLED
    }
    assert (grown, rows) == ({}, {})
    assert after.files == before.files
    assert after.tasks <= before.tasks
    assert after.threads < before.threads + MANY
    assert after.descriptors < before.descriptors + MANY
