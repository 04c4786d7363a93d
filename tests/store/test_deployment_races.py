"""Concurrent changes of one deployment are atomic, and only committed changes are published."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from stoker.registry.deployments import estimates, service
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.directory import Directory
from stoker.runtime.specification import DeploymentSpec
from stoker.store.tables.deployments import Deployment, Desired
from tests.deployments.support import DEPLOYMENTS, bert
from tests.support.app import App, serving
from tests.support.databases import postgres_url

__all__ = ["postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    folder = bert().resolve()
    async with serving(tmp_path / "data", database_url=url, source_dirs=[folder]) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with await app.account() as client:
        yield client


class Published:
    """Records the last specification that the runtime received."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: tuple[DeploymentSpec, bool] | None = None
        runtime = app.platform.runtime
        apply = runtime.apply

        def noted(spec: DeploymentSpec, *, running: bool) -> None:
            self.last = spec, running
            apply(spec, running=running)

        monkeypatch.setattr(runtime, "apply", noted)


async def made(client: httpx.AsyncClient, model: str = "raced", **fields: Any) -> str:
    body = {"model": model, "source": str(bert().resolve()), **fields}
    response = await client.post(DEPLOYMENTS, json=body)
    assert response.status_code == 201, response.text
    return response.json()["id"]


async def row_of(app: App, identifier: str) -> Deployment | None:
    async with app.platform.database.reading() as session:
        return await session.scalar(select(Deployment).where(Deployment.id == identifier))


class TestL5:
    async def test_stop_publishes_what_was_changed_meanwhile(
        self, app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        identifier = await made(client, max_queue=7)
        published = Published(app, monkeypatch)
        context, account = app.parts.get(DeploymentContext), client.account_id  # type: ignore[attr-defined]
        async with context.database.transaction() as session:
            await service.set_desired(session, context, account, identifier, Desired.STOPPED)
            changing = asyncio.create_task(
                client.patch(f"{DEPLOYMENTS}/{identifier}", json={"max_queue": 9})
            )
            # Without the row's lock the change would be finished.
            await asyncio.wait([changing], timeout=0.3)
        assert (await changing).status_code == 200
        row = await row_of(app, identifier)
        assert row and (row.max_queue, row.desired) == (9, "stopped")
        assert published.last == (service.spec_of(row), False)

    async def test_stop_of_one_that_is_deleted_meanwhile(
        self, app: App, client: httpx.AsyncClient
    ) -> None:
        identifier = await made(client)
        context, account = app.parts.get(DeploymentContext), client.account_id  # type: ignore[attr-defined]
        async with context.database.transaction() as session:
            await service.set_desired(session, context, account, identifier, Desired.STOPPED)
            deleting = asyncio.create_task(client.delete(f"{DEPLOYMENTS}/{identifier}"))
            await asyncio.wait([deleting], timeout=0.3)
        assert (await deleting).status_code == 200
        assert context.directory.find(identifier) is None
        assert context.runtime.stats(identifier) is None

    async def test_all_of_them_at_once(
        self, app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        published = Published(app, monkeypatch)
        for number in range(5):
            identifier = await made(client, f"raced-{number}", max_queue=1)
            url = f"{DEPLOYMENTS}/{identifier}"
            for last in (False, True):
                answers = await asyncio.gather(
                    *(client.patch(url, json={"max_queue": 2 + one}) for one in range(4)),
                    *(client.post(f"{url}/{verb}") for verb in ("stop", "start", "stop")),
                    *(client.delete(url) for _ in range(2 * last)),
                )
                statuses = [one.status_code for one in answers]
                row = await row_of(app, identifier)
                if not last:
                    assert set(statuses) == {200}, statuses
                    assert row is not None
                    running = row.desired == Desired.RUNNING
                    assert published.last == (service.spec_of(row), running)
                else:
                    assert set(statuses) <= {200, 404}, statuses
                    assert row is None
                    assert sorted(statuses[-2:]) == [200, 404]
            directory = app.parts.get(Directory)
            assert directory.find(identifier) is None
            assert app.platform.runtime.stats(identifier) is None


class TestL9:
    """A folder is inspected without blocking other writers."""

    async def test_no_transaction_is_open(
        self, app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database, loop = app.platform.database, asyncio.get_running_loop()
        inspect, looked = estimates.inspect, list[int]()

        async def written() -> None:
            async with asyncio.timeout(10), database.transaction() as session:
                await session.execute(select(Deployment).limit(1))

        def slow(*arguments: Any) -> Any:
            asyncio.run_coroutine_threadsafe(written(), loop).result(15)
            looked.append(1)
            return inspect(*arguments)

        monkeypatch.setattr(estimates, "inspect", slow)
        identifier = await made(client)
        for change in ({"dtype": "float32"}, {"max_queue": 3}):
            changed = await client.patch(f"{DEPLOYMENTS}/{identifier}", json=change)
            assert changed.status_code == 200, changed.text
        assert len(looked) == 2, "once to deploy it, once for numbers of another type"

    async def test_repeated_deployment_is_answered_without_the_folder(
        self, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.headers["idempotency-key"] = "once"
        first = await made(client)

        def gone(*_: Any) -> Any:
            raise AssertionError("it is looked into again")

        monkeypatch.setattr(estimates, "inspect", gone)
        assert await made(client) == first
