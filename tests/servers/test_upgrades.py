"""Servers of two releases serve together through an upgrade and a rollback."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

import stoker
from stoker.store import schema
from tests.agents.conftest import MODEL
from tests.agents.support import ANSWERED, COUNT, SUNNY, WEATHER, Account, check_sequence
from tests.servers.load import Balancer, load
from tests.servers.migrations import EXPANDING
from tests.servers.releases import REVISION, VERSION, next_release
from tests.servers.support import until
from tests.support import postgres
from tests.support.deploying import deploy, wait_for
from tests.support.server import Server
from tests.support.video import ltx
from tests.videos.conftest import decoded

pytestmark = pytest.mark.release

DRAIN_S = 2
SLOW = """
import pathlib
marker = pathlib.Path({marker!r})
if not marker.exists():
    marker.touch()
    op.execute("SELECT pg_sleep(60)")
"""


class Releases:
    """Starts servers of two releases on one PostgreSQL."""

    def __init__(self, root: Path, cluster: postgres.Cluster) -> None:
        self._root = root
        self._env = {
            "STOKER_DATABASE_URL": cluster.url,
            "STOKER_BLOB_URL": f"file://{root}/blobs",
            "STOKER_DRAIN_S": str(DRAIN_S),
        }
        self._next = next_release(root / "next")
        self.servers: list[Server] = []

    def server(self, version: str, **env: str) -> Server:
        data_dir = self._root / f"server{len(self.servers)}" / "data"
        data_dir.parent.mkdir()
        release = self._next if version == VERSION else {}
        server = Server(data_dir, **{**self._env, **release, **env})
        self.servers.append(server)
        return server

    def start(self, version: str, **env: str) -> Server:
        server = self.server(version, **env).start()
        assert httpx.get(f"{server.base_url}/health").json()["version"] == version
        return server

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def own_cluster() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as cluster:
        yield cluster


@pytest.fixture
def releases(own_cluster: postgres.Cluster, tmp_path: Path) -> Iterator[Releases]:
    started = Releases(tmp_path, own_cluster)
    yield started
    started.stop()


def key_of(server: Server, account_id: str) -> str:
    """Creates a key of an account on a server."""
    body = {"scope": "account", "account_id": account_id}
    with server.client(server.operator_key) as operator:
        key: str = operator.post("/v1/api-keys", json=body).raise_for_status().json()["key"]
    return key


def accepts(server: Server, key: str) -> None:
    with server.client(key) as client:
        assert client.get("/v1/models").raise_for_status().json()["data"][0]["id"] == "chat"


class Rollout:
    """Replaces servers one by one while jobs run on them."""

    def __init__(self, releases: Releases, balancer: Balancer, account_id: str, chat: str) -> None:
        self._releases = releases
        self._balancer = balancer
        self._account_id = account_id
        self._chat = chat
        self.resumed = 0
        """Number of runs that another server resumed."""

    def replace(self, old: Server, version: str) -> Server:
        new = self._releases.start(version)
        self._balancer.add(new)
        with self._account(new) as on_new, self._account(old) as on_old:
            for server, account in ((new, on_old), (old, on_new)):
                # A key of one release is valid on the other.
                accepts(server, account.client.headers["authorization"].removeprefix("Bearer "))
            waiting = on_old.run(on_old.agent(tools=[WEATHER]))
            on_old.until(waiting, "requires_action")
            agent = on_old.agent()
            assert old.process
            old.process.send_signal(signal.SIGTERM)
            time.sleep(DRAIN_S - 0.5)
            # A run begins just before the server ends.
            counting = on_old.run(agent, COUNT)
            assert old.stop() == 0
            self._balancer.remove(old)
            # Its runs continue on the other servers.
            on_new.answer(waiting, SUNNY)
            assert on_new.until(waiting)["output"] == ANSWERED
            counted = on_new.until(counting)
            assert (counted["status"], "100" in counted["output"]) == ("completed", True)
            events = on_new.events(counting)
            check_sequence(events)
            self.resumed += any(event["type"] == "run.resumed" for event in events)
        return new

    @contextlib.contextmanager
    def _account(self, server: Server) -> Iterator[Account]:
        with server.client(key_of(server, self._account_id)) as client:
            yield Account(client, self._chat)


def test_an_upgrade_and_a_rollback_fail_no_call(releases: Releases) -> None:
    own = stoker.__version__
    servers = [releases.start(own), releases.start(own)]
    client = servers[0].account()
    chat = deploy(client, MODEL, "chat", engine="torch", readiness="warm")
    wait_for(client, chat["id"], "ready")
    balancer = Balancer()
    try:
        for server in servers:
            balancer.add(server)
        key = client.headers["authorization"].removeprefix("Bearer ")
        account_id: Any = client.account_id  # type: ignore[attr-defined]
        rollout = Rollout(releases, balancer, account_id, chat["id"])
        with load(balancer, key) as running:
            for version in (VERSION, own):
                servers = [rollout.replace(server, version) for server in servers]
                running.wait_answers(20)
        # Each server has answered, and both kinds of calls went on all the time.
        assert running.addresses.keys() == {server.base_url for server in releases.servers}
        assert min(running.answers["answer"], running.answers["stream"]) > 100
        assert rollout.resumed > 0
    finally:
        balancer.close()
    for server in releases.servers:
        assert '"level": "error"' not in server.log.read_text(), server.last_lines()


def rows(cluster: postgres.Cluster, statement: str) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await asyncpg.connect(cluster.url.replace("+asyncpg", ""))
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(fetch())


SLEEPING = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
WAITS = "start waits: another server migrates the database"
CURRENT = "SELECT version_num FROM alembic_version"
FILM: dict[str, Any] = {
    **{"model": "film", "prompt": "a red circle", "seed": 7},
    **{"num_inference_steps": 150, "size": "64x64", "seconds": 0.36},
}
FRAMES, FPS = 9, 25
COUNTED = "SELECT sum(video_ms), sum(images) FROM usage_counts"
JOBS = "SELECT status, lock_token, losses FROM videos"


class Films:
    """Videos of one account, which servers of two releases make."""

    def __init__(self, server: Server, key: str) -> None:
        self._server, self._key = server, key
        self.ids: list[str] = []

    def on(self, server: Server) -> "Films":
        self._server = server
        return self

    def state(self, video_id: str) -> dict[str, Any]:
        with self._server.client(self._key) as client:
            state: dict[str, Any] = client.get(f"/v1/videos/{video_id}").raise_for_status().json()
        return state

    def ask_two(self) -> None:
        """Creates two videos. Returns when the server makes the first one."""
        with self._server.client(self._key) as client:
            for _ in range(2):
                created = client.post("/v1/videos", json=FILM).raise_for_status().json()
                self.ids.append(created["id"])
        until(lambda: self.state(self.ids[-2])["progress"] >= 5, 120)
        assert self.state(self.ids[-1])["status"] == "queued"

    def wait(self) -> None:
        for video_id in self.ids:
            until(lambda one=video_id: self.state(one)["status"] in ("completed", "failed"), 120)
            assert self.state(video_id)["status"] == "completed", self.state(video_id)

    def contents(self) -> set[bytes]:
        with self._server.client(self._key) as client:
            return {
                client.get(f"/v1/videos/{video_id}/content").raise_for_status().content
                for video_id in self.ids
            }


def test_the_other_release_completes_videos(
    releases: Releases, own_cluster: postgres.Cluster, tmp_path: Path
) -> None:
    """Servers are killed or drained while they make one video, and another one waits."""
    old = releases.start(stoker.__version__, STOKER_JOB_LEASE_S="1")
    client = old.account()
    deploy(client, ltx(tmp_path / "film"), "film")
    films = Films(old, client.headers["authorization"].removeprefix("Bearer "))
    films.ask_two()
    old.kill()
    new = releases.start(VERSION, STOKER_DRAIN_S="0")
    films.on(new).wait()
    films.ask_two()
    assert new.stop() == 0
    queued, completed = ("queued", None, 0), ("completed", None, 0)
    assert sorted(rows(own_cluster, JOBS)) == [completed, completed, queued, queued]
    last = releases.start(stoker.__version__)
    films.on(last).wait()
    # The same prompt and seed give the same video on each server.
    (content,) = films.contents()
    assert decoded(content) == (FRAMES, 64, 64, FPS, "h264")
    assert last.stop() == 0
    # Two videos were begun twice. The first attempt counts only if the model had completed it.
    ((milliseconds, errors),) = rows(own_cluster, COUNTED)
    videos, rest = divmod(int(milliseconds), FRAMES * 1000 // FPS)
    assert (videos in (4, 5, 6), rest, errors) == (True, 0, 0)


def test_the_next_start_completes_a_killed_migration(
    own_cluster: postgres.Cluster, tmp_path: Path
) -> None:
    script = SLOW.format(marker=str(tmp_path / "marker")) + EXPANDING
    env = {"STOKER_DATABASE_URL": own_cluster.url, "STOKER_BLOB_URL": f"file://{tmp_path}/blobs"}
    release = next_release(tmp_path / "next", script)
    server = Server(tmp_path / "own", **env).start()
    migrating = Server(tmp_path / "new", **env, **release)
    waiting = Server(tmp_path / "waiting", **env)
    try:
        with server.client(server.operator_key) as operator, ThreadPoolExecutor(2) as pool:
            start = pool.submit(migrating.start)
            until(lambda: rows(own_cluster, SLEEPING), 120)
            operator.post("/v1/accounts", json={"name": "before"}).raise_for_status()
            starting = pool.submit(waiting.start)
            until(lambda: waiting.log.exists() and WAITS in waiting.log.read_text(), 60)
            assert not starting.done()
            migrating.kill()
            with pytest.raises(RuntimeError, match="did not start"):
                start.result()
            assert rows(own_cluster, CURRENT) == [(schema.head(),)]
            # PostgreSQL ends the statement of the killed server, and with it the migration's lock.
            _, seconds = until(lambda: not rows(own_cluster, SLEEPING))
            assert seconds < 10
            assert starting.result().base_url
            migrating.start()
            assert rows(own_cluster, CURRENT) == [(REVISION,)]
            operator.post("/v1/accounts", json={"name": "after"}).raise_for_status()
            assert rows(own_cluster, "SELECT hue FROM accounts WHERE name = 'after'") == [(None,)]
    finally:
        for one in (migrating, waiting, server):
            one.stop()
