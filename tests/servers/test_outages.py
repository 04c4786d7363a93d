"""PostgreSQL is unavailable for a while under two working servers."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from sqlalchemy import text

from stoker.server import lifecycle
from stoker.store.db import Database
from tests.deployments.support import DEPLOYMENTS, TOKENS, check_error, deploy, upload
from tests.servers.support import OUTAGE_S, PATIENCE_S, Pair, until
from tests.support import postgres
from tests.support.app import serving
from tests.support.server import WITHOUT_MODELS, Server

KEYS = "/v1/api-keys"
LONGEST_S = 8.0
"""Maximum duration in seconds of an answer on a busy machine that waits for nothing. Connecting to
an unreachable database is tried for ten seconds.
"""


@pytest.fixture
def mortal() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as running_cluster:
        yield running_cluster


class Caller(threading.Thread):
    """Calls a model repeatedly until it is stopped."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__()
        self.answers: list[tuple[float, int, float, str | None]] = []
        """Per call: start time, status, duration in seconds and the `retry-after` header."""
        self._client = client
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            answer = self._client.post(TOKENS, json={"model": "tagger", "inputs": "Ada"})
            took = time.monotonic() - begun
            again = answer.headers.get("retry-after")
            self.answers.append((begun, answer.status_code, took, again))
            self._over.wait(0.05)

    def end(self) -> None:
        self._over.set()
        self.join(60)


def known(url: str) -> set[str]:
    """Returns the ids of the servers that are registered in a database."""

    async def asked() -> set[str]:
        database = Database(url)
        try:
            async with database.reading() as session:
                return {*await session.scalars(text("SELECT id FROM servers"))}
        finally:
            await database.close()

    return asyncio.run(asked())


@pytest.mark.fault("c5")
@pytest.mark.fault("f2")
def test_gone_and_back(two: Pair, tmp_path: Path) -> None:
    on_a, on_b = two.account()
    made = deploy(on_a, upload(two.a, on_a), "tagger", readiness="hot")
    url = f"{DEPLOYMENTS}/{made['id']}"
    until(lambda: all(is_ready(client, url) for client in (on_a, on_b)), 90)
    acknowledged = {
        client.post(KEYS, json={"scope": "account"}).raise_for_status().json()["id"]
        for client in (on_a, on_b)
    }
    env = {"STOKER_DATABASE_URL": two.cluster.url, "STOKER_BLOB_DIR": str(tmp_path / "blobs")}
    third = Server(tmp_path / "data", **env, **WITHOUT_MODELS).start()
    callers = [Caller(server_client(two, at, on_a)) for at in range(2)]
    before = known(two.cluster.url)
    for caller in callers:
        caller.start()
    try:
        until(lambda: all(one.answers for one in callers))
        two.cluster.stop()
        stopped = time.monotonic()
        refused = on_b.post(KEYS, json={"scope": "account"})
        check_error(refused, 503, "CapacityError", "database_unavailable")
        # A server also stops cleanly without its database.
        assert third.stop(PATIENCE_S) == 0
        time.sleep(max(0.0, OUTAGE_S - (time.monotonic() - stopped)))
        two.cluster.start()
        started = time.monotonic()
        for caller in callers:
            until(lambda one=caller: one.answers[-1][1] == 200 and one.answers[-1][0] > started)
    finally:
        third.stop()
        for caller in callers:
            caller.end()
    for one in callers:
        check_calls(one, stopped, started)
    for client in (on_a, on_b):
        key_ids = {key["id"] for key in client.get(KEYS).raise_for_status().json()["data"]}
        assert key_ids >= acknowledged
        new = client.post(KEYS, json={"scope": "account"})
        assert new.status_code == 201, new.text
    # No server was considered lost.
    for server in (two.a, two.b):
        gone = [one for one in server.log.read_text().splitlines() if "peer server is gone" in one]
        assert not {json.loads(line)["server"] for line in gone} & before & known(two.cluster.url)
    # Each server applies the changes of the other again.
    on_b.delete(url).raise_for_status()
    until(lambda: on_a.post(TOKENS, json={"model": "tagger", "inputs": "A"}).status_code == 404)


def is_ready(client: httpx.Client, own: str) -> bool:
    answer = client.get(own)
    return answer.status_code == 200 and answer.json()["status"] == "ready"


def server_client(two: Pair, at: int, known: httpx.Client) -> httpx.Client:
    key = known.headers["authorization"].removeprefix("Bearer ")
    return (two.a, two.b)[at].client(key)


def check_calls(caller: Caller, stopped: float, started: float) -> None:
    """Checks that calls continued or were rejected with a retry time, and that no call hung."""
    assert {status for _, status, _, _ in caller.answers} <= {200, 503}
    assert all(again for _, status, _, again in caller.answers if status == 503)
    assert max(took for _, _, took, _ in caller.answers) < LONGEST_S
    during = [call for call in caller.answers if stopped < call[0] < started]
    assert during, "nobody called meanwhile"


async def test_an_end_is_bounded_where_the_database_stands_still(
    mortal: postgres.Cluster, tmp_path: Path
) -> None:
    pids: list[int] = []
    with patch.object(lifecycle, "STEP_S", 0.5):
        async with serving(tmp_path / "data", database_url=mortal.url) as app:
            (await app.account()).headers.clear()
            async with app.platform.database.reading() as session:
                backends = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
                pids += [int(pid) for pid in await session.scalars(text(backends))]
            postgres.signalled(pids, signal.SIGSTOP)
            begun = time.monotonic()
    took = time.monotonic() - begun
    postgres.signalled(pids, signal.SIGCONT)
    # A single statement has a timeout of thirty seconds.
    assert took < 25
