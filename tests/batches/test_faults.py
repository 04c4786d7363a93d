"""Servers are killed at random moments of batches. Each line is answered and counted once."""

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import select

from stoker.base.config import Settings
from stoker.platform.web.context import Platform
from stoker.server.services import build_services
from stoker.store import db
from stoker.store.tables.batches import BatchPart
from stoker.workloads.batches import parts
from tests.batches.conftest import sdk_of
from tests.batches.support import (
    CHAT,
    ENDED,
    MODELS,
    by_id,
    create,
    jsonl,
    line,
    put_file,
    results,
)
from tests.servers.support import pair
from tests.support import postgres
from tests.support.deploying import deploy
from tests.support.server import Server

KILLS = int(os.environ.get("STOKER_TEST_KILLS", "2"))
"""Number of kills. Twenty take some five minutes."""
LINES = int(os.environ.get("STOKER_TEST_LINES", "400"))
SEED = int(os.environ.get("STOKER_TEST_SEED", "1"))
LONGEST_S = 5.0
"""Maximum seconds between the start of a server and its end."""
pytestmark = [pytest.mark.one_machine, pytest.mark.timeout(480 + 60 * KILLS)]
ENV = {"STOKER_JOB_LEASE_S": "1", "STOKER_BATCH_LINES_AT_ONCE": "16"}


def lines(count: int) -> list[dict[str, Any]]:
    return [
        line(
            f"c{number}",
            CHAT,
            model="chat",
            messages=[{"role": "user", "content": f"Count to {number}."}],
            max_tokens=24,
            temperature=0,
        )
        for number in range(count)
    ]


class Killing:
    """Runs batches of one account on servers that are killed meanwhile."""

    def __init__(self, servers: Sequence[Server], seed: int) -> None:
        self.servers = servers
        self.rng = random.Random(seed)
        self.kills = self.batches = 0
        self.tokens = [0, 0]
        with servers[0].account("killed") as client:
            self.key = client.headers["authorization"].removeprefix("Bearer ")
            deploy(client, MODELS / "tiny-chat", "chat")

    def client(self) -> httpx.Client:
        # The port changes with each start.
        return self.servers[0].client(self.key)

    def begin(self, count: int) -> str:
        with self.client() as client, sdk_of(self.servers[0], client) as sdk:
            return create(sdk, put_file(client, jsonl(lines(count))), CHAT).id

    def status(self, batch_id: str) -> openai.types.Batch:
        with self.client() as client, sdk_of(self.servers[0], client) as sdk:
            return sdk.batches.retrieve(batch_id)

    def kill_one(self) -> None:
        time.sleep(self.rng.uniform(0, LONGEST_S))
        server = self.rng.choice(self.servers)
        server.kill()
        server.start()
        self.kills += 1

    def finish(self, batch_id: str, count: int) -> None:
        """Waits for the end of a batch and checks its answers."""
        deadline = time.monotonic() + 120 + count / 10
        while (batch := self.status(batch_id)).status not in ENDED:
            assert time.monotonic() < deadline, batch
            time.sleep(0.2)
        assert batch.status == "completed", batch
        with self.client() as client:
            outputs = by_id(results(client, batch.output_file_id))
        assert batch.error_file_id is None
        assert {*outputs} == {f"c{number}" for number in range(count)}
        counts, usage = batch.request_counts, batch.usage
        assert counts and (counts.total, counts.completed, counts.failed) == (count, count, 0)
        used = [answer["response"]["body"]["usage"] for answer in outputs.values()]
        tokens = [sum(one[name] for one in used) for name in ("prompt_tokens", "completion_tokens")]
        assert usage and [usage.input_tokens, usage.output_tokens] == tokens
        self.tokens = [sum(pair) for pair in zip(self.tokens, tokens, strict=True)]
        self.batches += 1

    def counted(self) -> list[int]:
        """Returns the counted requests, errors and tokens of all batches."""
        with self.client() as client:
            answer = client.get("/v1/usage/events", params={"limit": 100}).raise_for_status()
        rows = [row for row in answer.json()["data"] if row["type"] == "calls"]
        names = ("requests", "errors", "input_tokens", "output_tokens")
        return [sum(row[name] for row in rows) for name in names]


def survive(killing: Killing, *, kills: int, count: int) -> None:
    """Kills servers at random moments of batches until the number of kills is reached."""
    while killing.kills < kills:
        batch_id = killing.begin(count)
        while killing.kills < kills and killing.status(batch_id).status not in ENDED:
            killing.kill_one()
        killing.finish(batch_id, count)
    requests = killing.batches * count
    assert killing.counted() == [requests, 0, *killing.tokens]
    print(f"{killing.kills} kills, {killing.batches} batches, {requests} lines: all once")


async def check_nothing_is_left(settings: Settings) -> None:
    """Asserts that no part remains, except of those that a killed server wrote without a row."""
    platform = build_services(settings).get(Platform)
    try:
        later = db.now() + parts.STRAY_AFTER
        await parts.sweep_strays(platform.database, platform.blobs, later)
        assert await platform.blobs.keys(parts.BLOBS) == []
        async with platform.database.reading() as session:
            assert (await session.scalars(select(BatchPart.id))).all() == []
    finally:
        await platform.media.close()
        await platform.database.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", **ENV)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def postgresql() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as cluster:
        yield cluster


def test_every_line_is_answered_once(server: Server) -> None:
    survive(Killing([server], SEED), kills=KILLS, count=LINES)
    assert server.stop() == 0
    asyncio.run(check_nothing_is_left(Settings(data_dir=server.data_dir)))


def test_every_line_is_answered_once_by_two_servers(
    postgresql: postgres.Cluster, tmp_path: Path
) -> None:
    with pair(tmp_path, postgresql, **ENV) as servers:
        survive(Killing([servers.a, servers.b], SEED), kills=KILLS, count=LINES)
        for server in (servers.a, servers.b):
            assert server.stop() == 0
        settings = Settings(
            data_dir=servers.a.data_dir,
            database_url=postgresql.url,
            blob_url=f"file://{tmp_path}/blobs",
        )
        asyncio.run(check_nothing_is_left(settings))
