"""The whole app with a database that is locked, slow, or temporarily unavailable."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from stoker.store import sqlite, waiting
from stoker.tenancy.usage.metering import Metering
from tests.deployments.support import DEPLOYMENTS, check_error
from tests.support import postgres
from tests.support.app import App, serving
from tests.support.machines import NER

KEYS, MODELS, ARTIFACTS = "/v1/api-keys", "/v1/models", "/v1/model-artifacts"
BUSY_MS = 300
BODY = {"scope": "account"}


@pytest.fixture
def busy_ms() -> int:
    """Returns the lock timeout of a writer in milliseconds."""
    return BUSY_MS


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_ms: int) -> AsyncIterator[App]:
    pragmas = (*sqlite._PRAGMAS, f"busy_timeout={busy_ms}")
    monkeypatch.setattr(sqlite, "_PRAGMAS", pragmas)
    async with serving(tmp_path / "data", source_dirs=[NER]) as app:
        yield app


class TestSqlite:
    """Another process, such as an operator's backup, holds the write lock."""

    @pytest.mark.fault("c3")
    @pytest.mark.case(29)
    async def test_locked(self, app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        client = await app.account()
        with closing(
            sqlite3.connect(tmp_path / "data" / "stoker.db", isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            refused = await client.post(KEYS, json=BODY | {"name": "canary-of-a-name"})
            check_error(refused, 503, "CapacityError", "database_unavailable")
            assert refused.headers["retry-after"] == "2"
            assert "database does not answer" in caplog.text
            assert "canary" not in caplog.text
            # Read requests are not blocked.
            assert (await client.get(KEYS)).status_code == 200
            connection.execute("ROLLBACK")
        assert (await client.post(KEYS, json=BODY)).status_code == 201
        assert len((await client.get(KEYS)).json()["data"]) == 2

    @pytest.mark.fault("c4")
    @pytest.mark.parametrize("busy_ms", [100 * BUSY_MS])
    async def test_slow(self, app: App, tmp_path: Path) -> None:
        """If the lock is released before the timeout, no request is rejected and each write happens
        once.
        """
        client = await app.account()
        with closing(
            sqlite3.connect(tmp_path / "data" / "stoker.db", isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            asking = [asyncio.create_task(client.post(KEYS, json=BODY)) for _ in range(4)]
            await asyncio.wait(asking, timeout=BUSY_MS / 1000)
            assert not any(task.done() for task in asking)
            connection.execute("ROLLBACK")
        assert [(await task).status_code for task in asking] == [201] * 4
        assert len((await client.get(KEYS)).json()["data"]) == 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as running_cluster:
        yield running_cluster


@pytest.fixture
async def on_postgres(cluster: postgres.Cluster, tmp_path: Path) -> AsyncIterator[App]:
    async with serving(tmp_path / "data", database_url=cluster.url, key_cache_s=60) as app:
        yield app

    @pytest.mark.fault("c3")
    async def test_events_of_deployments_wait(
        self,
        app: App,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(waiting, "RETRY_S", 0.01)
        client = await app.account()
        body = {"model": "tagger", "source": str(NER)}
        made = await client.post(DEPLOYMENTS, json=body)
        events = f"{DEPLOYMENTS}/{made.raise_for_status().json()['id']}/events"
        with closing(
            sqlite3.connect(tmp_path / "data" / "stoker.db", isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            answer = await client.post(
                "/v1/classifications/token", json={"model": "tagger", "inputs": "Ada"}
            )
            assert answer.status_code == 200
            # The write is tried more than once.
            await asyncio.sleep(3 * BUSY_MS / 1000)
            assert "ready" not in await statuses(client, events)
            connection.execute("ROLLBACK")
        async with asyncio.timeout(10):
            while (latest := await statuses(client, events))[:1] != ["ready"]:
                await asyncio.sleep(0.02)
        assert latest.count("ready") == 1
        messages = [
            record.getMessage() for record in caplog.records if "tried again" in record.getMessage()
        ]
        assert messages == [
            "events of deployments could not be written; retrying until it succeeds"
        ]


async def statuses(client: httpx.AsyncClient, events: str) -> list[str]:
    """Returns the statuses in a deployment's events, latest first."""
    rows = (await client.get(events)).raise_for_status().json()["data"]
    return [row["status"] for row in rows]


class TestPostgres:
    @pytest.mark.fault("c5")
    @pytest.mark.case(29)
    async def test_gone_and_back(
        self, on_postgres: App, cluster: postgres.Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = await on_postgres.account()
        made = (await client.post(ARTIFACTS, json={"display_name": "ner"})).json()
        cluster.stop()
        try:
            for method, path in (("POST", KEYS), ("GET", KEYS), ("GET", ARTIFACTS)):
                body = BODY | {"name": "canary-of-a-name"} if method == "POST" else None
                answer = await client.request(method, path, json=body)
                check_error(answer, 503, "CapacityError", "database_unavailable")
            assert "canary" not in caplog.text
            # Requests that need no database are answered while a checked key is cached.
            assert (await client.get(MODELS)).status_code == 200
        finally:
            cluster.start()
        assert (await client.get(f"{ARTIFACTS}/{made['id']}")).json() == made
        assert (await client.post(KEYS, json=BODY)).status_code == 201
        await on_postgres.parts.get(Metering).tick()

    @pytest.mark.fault("c4")
    async def test_stands_still(self, on_postgres: App) -> None:
        """Requests that need the database wait and are executed once. Other requests do not
        wait.
        """
        client = await on_postgres.account()
        assert (await client.get(MODELS)).status_code == 200
        database = on_postgres.platform.database
        async with database.reading() as session:
            rows = await session.scalars(
                text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
            )
            pids = [int(pid) for pid in rows]
        postgres.signalled(pids, signal.SIGSTOP)
        try:
            asking = asyncio.create_task(client.post(KEYS, json=BODY))
            await asyncio.wait([asking], timeout=0.3)
            assert not asking.done()
            async with asyncio.timeout(30):
                assert (await client.get(MODELS)).status_code == 200
        finally:
            postgres.signalled(pids, signal.SIGCONT)
        assert (await asking).status_code == 201
        assert len((await client.get(KEYS)).json()["data"]) == 2
