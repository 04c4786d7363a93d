"""Servers and replicas are killed at random moments. Every accepted video ends once and is
complete.
"""

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import select

from stoker.base.config import Settings
from stoker.platform.jobs.runner import MOST_LOSSES
from stoker.platform.web.context import Platform
from stoker.registry.files import service as files
from stoker.server.services import build_services
from stoker.store import db
from stoker.store.tables.files import File
from stoker.store.tables.jobs import JobStatus
from stoker.store.tables.videos import Video
from tests.support.deploying import deploy
from tests.support.server import Server
from tests.videos.conftest import decoded

KILLS = int(os.environ.get("STOKER_TEST_KILLS", "2"))
"""Number of kills. A soak has a hundred and takes some twenty minutes."""
SEED = int(os.environ.get("STOKER_TEST_SEED", "1"))
ASKED: dict[str, Any] = {"num_inference_steps": 24, "size": "64x64", "seconds": 0.68}
FRAMES, RATE = 17, 25.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data", STOKER_JOB_LEASE_S="1")
    try:
        yield server.start()
    finally:
        server.stop()


def workers(server: Server) -> dict[str, list[psutil.Process]]:
    """Returns the engine host and the replicas that it has forked."""
    process, replicas = server.process, list[psutil.Process]()
    hosts = psutil.Process(process.pid).children() if process else []
    for host in hosts:
        with contextlib.suppress(psutil.NoSuchProcess):
            replicas += host.children()
    return {"host": hosts, "replica": replicas}


def kill_something(rng: random.Random, server: Server) -> str:
    """Sends SIGKILL to a replica, the engine host or the server, and restarts the server if it was
    killed.
    """
    kind = rng.choice(["server", "server", "replica", "replica", "host"])
    if kind != "server" and (processes := workers(server)[kind]):
        with contextlib.suppress(psutil.NoSuchProcess):
            rng.choice(processes).kill()
        return kind
    server.kill()
    server.start()
    return "server"


def ask(client: Any, number: int) -> str:
    body = {"model": "film", "prompt": f"take {number}", **ASKED}
    return client.post("/v1/videos", json=body).raise_for_status().json()["id"]


def states(client: Any, ids: list[str]) -> dict[str, dict[str, Any]]:
    return {
        video_id: client.get(f"/v1/videos/{video_id}").raise_for_status().json() for video_id in ids
    }


@pytest.mark.one_machine
@pytest.mark.fault("b3")
async def test_every_video_ends_once(server: Server, folders: dict[str, Path]) -> None:
    rng = random.Random(SEED)
    key = str(server.account("faults").headers["authorization"])

    def client() -> httpx.Client:
        # The port changes with each start.
        return httpx.Client(
            base_url=server.base_url, headers={"authorization": key}, timeout=60, verify=False
        )

    with client() as first:
        deploy(first, folders["film"], "film")
    accepted: list[str] = []
    ended: dict[str, dict[str, Any]] = {}
    killed = Counter[str]()

    def look(one: httpx.Client) -> None:
        for identifier, video in states(one, accepted).items():
            if identifier in ended:
                assert video == ended[identifier], "it ended a second time"
            elif video["status"] in ("completed", "failed"):
                ended[identifier] = video

    for cycle in range(KILLS):
        with client() as one:
            accepted.append(ask(one, cycle))
            time.sleep(rng.uniform(0, 6) if cycle % 2 else rng.uniform(0, 1.5))
            look(one)
        killed[kill_something(rng, server)] += 1
    deadline = time.monotonic() + 60 + 10 * KILLS
    while len(ended) < len(accepted):
        assert time.monotonic() < deadline, [one for one in accepted if one not in ended]
        time.sleep(0.2)
        with client() as one:
            look(one)

    outcomes = Counter(video["status"] for video in ended.values())
    print(f"{KILLS} kills ({dict(killed)}), {len(accepted)} videos: {dict(outcomes)}")
    with client() as one:
        for identifier, video in ended.items():
            content = one.get(f"/v1/videos/{identifier}/content")
            if video["status"] == "completed":
                assert decoded(content.content) == (FRAMES, 64, 64, RATE, "h264")
                assert (video["size"], video["seconds"]) == ("64x64", FRAMES / RATE)
            else:
                assert video["error"]["code"] == "worker_lost", video
                assert content.status_code == 409
    assert server.stop() == 0
    await check_nothing_is_left(server, outcomes["completed"])


async def check_nothing_is_left(server: Server, completed: int) -> None:
    """Asserts that only the rows and bytes of completed videos remain."""
    platform = build_services(Settings(data_dir=server.data_dir)).get(Platform)
    try:
        # Files that a server wrote just before it was killed are deleted once they are old enough.
        later = db.now() + files.STRAY_AFTER
        await files.sweep_strays(platform.database, platform.blobs, later)
        async with platform.database.reading() as session:
            videos = (await session.scalars(select(Video))).all()
            rows = (await session.scalars(select(File))).all()
        stored = {path.name for path in (server.data_dir / "blobs" / "files").glob("*")}
        made = [row for row in videos if row.status == JobStatus.COMPLETED]
        named = {name for row in made for name in (row.video_id, row.thumbnail_id)}
        assert stored == {row.id for row in rows} == named
        assert len(made) == completed and len(named) == 2 * completed
        for row in videos:
            assert JobStatus(row.status).is_finished
            assert row.lock_token is row.lock_expires_at is None
            assert row.tries >= 1 and row.losses < MOST_LOSSES
    finally:
        await platform.media.close()
        await platform.database.close()
