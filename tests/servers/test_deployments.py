"""A change to a deployment on one server takes effect on all servers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from sqlalchemy import text

from stoker.registry.deployments import revisions
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.registry.deployments.peer_updates import Following
from stoker.store.db import Database
from stoker.store.servers import loaded_elsewhere
from tests.artifacts.support import Uploading
from tests.deployments.support import DEPLOYMENTS, bert, call, check_error, deploy
from tests.servers.support import SLACK_S, SOON_S, Pair, until
from tests.support.app import App, serving
from tests.support.machines import NER

MODELS = "/v1/models"


@pytest.fixture(scope="module")
def clients(two: Pair) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    two.a.wait_ready()
    two.b.wait_ready()
    on_a, on_b = two.account()
    with on_a, on_b:
        yield on_a, on_b


@pytest.fixture(scope="module")
def artifact_id(two: Pair, clients: tuple[httpx.Client, httpx.Client]) -> str:
    """Uploads an artifact in one session. Its files go to both servers in turn, and the second
    server completes it.
    """
    on_a, on_b = clients
    sessions = [Uploading.open(two.a, on_a)]
    sessions.append(Uploading(two.b, on_b, *vars_of(sessions[0])))
    for at, path in enumerate(sorted(bert().iterdir())):
        sessions[at % 2].put(path.name, path.read_bytes()).raise_for_status()
    assert sessions[1].complete().json()["artifact"]["status"] == "ready"
    return sessions[0].artifact_id


def vars_of(session: Uploading) -> tuple[str, str, int]:
    return session.artifact_id, session.upload_id, session.part_size


def called(client: httpx.Client, model: str, status: int) -> httpx.Response | None:
    answer = call(client, model, wait=60)
    return answer if answer.status_code == status else None


def loaded(two: Pair, version_id: str) -> bool:
    """Returns True if a server has reported to the others that it loaded the version."""

    async def told() -> bool:
        database = Database(two.cluster.url)
        try:
            async with database.reading() as session:
                return await loaded_elsewhere(session, "", version_id)
        finally:
            await database.close()

    return asyncio.run(told())


def is_soon(seconds: float) -> bool:
    return seconds < SOON_S + SLACK_S


class TestTwo:
    def test_a_life(self, clients: tuple[httpx.Client, httpx.Client], artifact_id: str) -> None:
        on_a, on_b = clients
        made = deploy(on_a, artifact_id, "tagger")
        url = f"{DEPLOYMENTS}/{made['id']}"
        _, seconds = until(
            lambda: any(model["id"] == "tagger" for model in on_b.get(MODELS).json()["data"])
        )
        assert is_soon(seconds)
        answers = [called(client, "tagger", 200) for client in clients]
        assert answers[0].json() == answers[1].json()
        # Each server has its own replica.
        assert len(on_b.get(url).json()["workers"]) == 1

        on_a.post(f"{url}/stop").raise_for_status()
        stopped, seconds = until(lambda: called(on_b, "tagger", 409))
        assert is_soon(seconds)
        check_error(stopped, 409, "ConflictError", "deployment_stopped")
        until(lambda: not on_b.get(url).json()["workers"])

        # A stopped deployment gets a new version at once when its configuration changes. The other
        # server starts it.
        changed = on_a.patch(url, json={"dtype": "bfloat16"}).raise_for_status().json()
        assert changed["version_id"] != made["version_id"]
        on_b.post(f"{url}/start").raise_for_status()
        answer, _ = until(lambda: called(on_b, "tagger", 200))
        assert answer.headers["x-stoker-version"] == changed["version_id"]
        answer, seconds = until(lambda: called(on_a, "tagger", 200))
        assert answer.headers["x-stoker-version"] == changed["version_id"]

        on_b.delete(url).raise_for_status()
        gone, seconds = until(lambda: called(on_a, "tagger", 404))
        assert is_soon(seconds)
        check_error(gone, 404, "ModelNotFoundError", "model_not_found", "model")
        assert on_a.get(MODELS).json()["data"] == []

    def test_hot_is_loaded_on_both(
        self, clients: tuple[httpx.Client, httpx.Client], artifact_id: str
    ) -> None:
        on_a, on_b = clients
        made = deploy(on_a, artifact_id, "hot", readiness="hot")
        url = f"{DEPLOYMENTS}/{made['id']}"
        until(lambda: {client.get(url).json()["status"] for client in clients} == {"ready"}, 60)
        on_b.delete(url).raise_for_status()

    def test_a_version_is_proven_where_another_server_has_it_loaded(
        self, two: Pair, clients: tuple[httpx.Client, httpx.Client], artifact_id: str
    ) -> None:
        """A change through a server that has not loaded the model must not fail calls on the other
        server.
        """
        on_a, on_b = clients
        made = deploy(on_a, artifact_id, "proven")
        url = f"{DEPLOYMENTS}/{made['id']}"
        until(lambda: called(on_b, "proven", 200))
        assert on_a.get(url).json()["workers"] == []
        until(lambda: loaded(two, made["version_id"]))
        changed = on_a.patch(url, json={"dtype": "bfloat16"}).raise_for_status().json()
        assert changed["version_id"] == made["version_id"]
        until(lambda: on_b.get(url).json()["version_id"] != made["version_id"], 60)
        newest = on_b.get(url).json()
        assert newest["dtype"] == "bfloat16"
        until(
            lambda: (
                called(on_b, "proven", 200).headers.get("x-stoker-version") == newest["version_id"]
            )
        )
        on_b.delete(url).raise_for_status()


@pytest.fixture
async def apps(postgres_url: str, tmp_path: Path) -> AsyncIterator[list[App]]:
    """Yields two apps in this process. They poll each other only when a test triggers it."""
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(patch("stoker.registry.deployments.peer_updates.LOOK_S", 3600.0))
        yield [
            await stack.enter_async_context(
                serving(
                    tmp_path / name, database_url=postgres_url, source_dirs=[NER], key_cache_s=60
                )
            )
            for name in "ab"
        ]


async def following(app: App) -> Following:
    follower = Following(app.parts.get(DeploymentContext))
    await follower.open()
    return follower


async def make(client: httpx.AsyncClient, model: str) -> str:
    body = {"model": model, "source": str(NER)}
    return (await client.post(DEPLOYMENTS, json=body)).raise_for_status().json()["id"]


def models(app: App, account_id: str) -> set[str]:
    entries = app.parts.get(Directory).entries()
    return {entry.model for entry in entries if entry.account_id == account_id}


class TestFollowing:
    async def test_one_that_is_far_behind(self, apps: list[App]) -> None:
        """A follower that is far behind reloads everything, including creations and deletions."""
        a, b = apps
        with patch.object(revisions, "REMEMBERED", 3), patch.object(revisions, "_FORGET_EVERY", 1):
            client = await a.account()
            follower = await following(b)
            first = await make(client, "first")
            await follower.follow()
            assert models(b, client.account_id) == {"first"}
            for at in range(6):
                await make(client, f"m{at}")
            (await client.delete(f"{DEPLOYMENTS}/{first}")).raise_for_status()
            await follower.follow()
            assert models(b, client.account_id) == {f"m{at}" for at in range(6)}
            async with b.platform.database.reading() as session:
                rows = await session.scalar(text("SELECT count(*) FROM deployment_changes"))
            assert rows <= 5

    async def test_a_model_deployed_through_another_server_is_found_at_once(
        self, apps: list[App]
    ) -> None:
        """A new model is found without polling: the call itself triggers a query of the
        database.
        """
        a, b = apps
        on_a = await a.account()
        on_b = b.client(on_a.headers["authorization"].removeprefix("Bearer "))
        other = b.client((await a.account()).headers["authorization"].removeprefix("Bearer "))
        await make(on_a, "fresh")
        answers = await asyncio.gather(*(on_b.get("/v1/models/fresh") for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert models(b, on_a.account_id) == {"fresh"}
        for client, model in ((on_b, "unknown"), (other, "fresh")):
            refused = await client.get(f"/v1/models/{model}")
            assert refused.json()["error"]["code"] == "model_not_found"
        await make(on_a, "classifier")
        refused = await on_b.post("/v1/agent", json={"name": "a", "model": "classifier"})
        assert refused.json()["error"]["code"] == "endpoint_not_supported"

    async def test_one_that_cannot_be_followed_keeps_no_other(self, apps: list[App]) -> None:
        a, b = apps
        client = await a.account()
        follower = await following(b)
        await make(client, "bad")
        await make(client, "good")
        directory = b.parts.get(Directory)
        put = directory.put

        def failing(entry: DirectoryEntry) -> None:
            if entry.model == "bad":
                raise OSError("no room")
            put(entry)

        with patch.object(directory, "put", failing):
            await follower.follow()
        assert models(b, client.account_id) == {"good"}
        await follower.follow()
        assert models(b, client.account_id) == {"good", "bad"}

    async def test_its_own_changes_are_not_told_again(self, apps: list[App]) -> None:
        a, b = apps
        client = await a.account()
        followers = [await following(app) for app in apps]
        await make(client, "own")
        applied: list[str] = []
        for app, follower in zip(apps, followers, strict=True):
            directory = app.parts.get(Directory)
            with patch.object(directory, "put", lambda entry: applied.append(entry.model)):
                await follower.follow()
                await follower.follow()
        assert applied == ["own"]
        assert "own" not in models(b, client.account_id)

    async def test_nobody_waits_in_a_circle(self, apps: list[App]) -> None:
        """Changes of the same deployments in either order through both servers all succeed without
        deadlock.
        """
        a, b = apps
        on_a = await a.account()
        on_b = b.client(on_a.headers["authorization"].removeprefix("Bearer "))
        ids = [await make(on_a, f"c{at}") for at in range(4)]
        follower = await following(b)

        async def change(client: httpx.AsyncClient, order: list[str], queue: int) -> None:
            for at in range(5):
                for deployment_id in order:
                    answer = await client.patch(
                        f"{DEPLOYMENTS}/{deployment_id}", json={"max_queue": queue + at}
                    )
                    assert answer.status_code == 200, answer.text

        await asyncio.gather(
            change(on_a, ids, 100), change(on_b, ids[::-1], 200), change(on_a, ids[::-1], 300)
        )
        await follower.follow()
        async with b.platform.database.reading() as session:
            rows = await session.execute(text("SELECT id, max_queue FROM deployments"))
            queues = dict(iter(tuple(row) for row in rows))
        runtime = b.platform.runtime
        for deployment_id in ids:
            live = b.parts.get(Directory).live(deployment_id)
            assert runtime._deployments[live].spec.max_queue == queues[deployment_id]

    async def test_revisions_are_seen_in_their_order(self, apps: list[App]) -> None:
        """A transaction that began first and commits last has the later revision."""
        a, b = (app.platform.database for app in apps)
        async with a.reading() as session:
            before = await revisions.current(session)

        async def seen(database: Database, since: int) -> list[str]:
            async with database.reading() as session:
                changes = await revisions.since(session, "srv_x", since)
            return sorted(changes[1])

        async with a.transaction() as slow:
            revisions.note(slow, a, "dep_slow")
            await slow.execute(text("SELECT 1"))
            async with b.transaction() as quick:
                revisions.note(quick, b, "dep_quick")
            assert await seen(a, before) == ["dep_quick"]
        assert await seen(a, before) == ["dep_quick", "dep_slow"]
        assert await seen(a, before + 1) == ["dep_slow"]
