"""A real server is killed while it meters a real worker."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from stoker.store.db import Database
from stoker.store.tables.usage import Holding
from stoker.tenancy.usage.accrual import STALE_MS
from stoker.tenancy.usage.metering import TICK_S
from tests.deployments.support import call, deploy, upload
from tests.support.deploying import deployment
from tests.support.server import WITHOUT_MODELS, Server, running
from tests.usage.support import Clock, Lab

MIB = 1024 * 1024
BEAT_S = 2.0
"""How old a worker's size may be where it is counted."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "data", **WITHOUT_MODELS) as server:
        yield server


def ticked(server: Server) -> int:
    """When the worker was written down last, ms since 1970; 0: never."""
    with sqlite3.connect(f"file:{server.data_dir}/stoker.db?mode=ro", uri=True) as database:
        (found,) = database.execute(
            "select max(ended_ms) from holdings where kind = 'memory' and mib_ms > 0"
        ).fetchone()
    return found or 0


def watch(server: Server, client: httpx.Client, identifier: str) -> tuple[Any, float]:
    """Watch a worker until some seconds after a tick; the worker and its MiB times seconds."""
    (worker,) = deployment(client, identifier)["workers"]
    at = psutil.Process(worker["pid"]).create_time()
    truth, end = 0.0, at + 60
    is_written = False
    while at < end:
        (worker,) = deployment(client, identifier)["workers"]
        now = time.time()
        truth += (worker["memory_bytes"] or 0) / MIB * (now - at)
        at = now
        if not is_written and ticked(server):
            is_written, end = True, now + 3
        time.sleep(0.1)
    assert is_written, "the server does not meter"
    return worker, truth


def wait_weighed(client: httpx.Client, identifier: str) -> dict[str, Any]:
    """The worker, once its size is known to the server and was counted for a moment."""
    deadline = time.monotonic() + 30
    while True:
        (worker,) = deployment(client, identifier)["workers"]
        if worker["memory_bytes"]:
            time.sleep(BEAT_S)
            return worker
        assert time.monotonic() < deadline
        time.sleep(0.1)


def later(server: Server) -> tuple[list[Holding], int]:
    """What a server that comes up later makes of it: the holdings, and what was charged."""

    async def bill() -> tuple[list[Holding], int]:
        database = Database(f"sqlite+aiosqlite:///{server.data_dir}/stoker.db")
        try:
            now_ms = int(time.time() * 1000) + STALE_MS + 1
            lab = Lab(database, Clock(wall_ms=now_ms))
            for _ in range(3):
                await lab.metering.open()
            await lab.check_ledger()
            held = [one for one in await lab.rows(Holding) if one.kind == "memory"]
            return held, sum(one.charged_microcredits for one in held)
        finally:
            await database.close()

    return asyncio.run(bill())


@pytest.mark.one_machine
@pytest.mark.fault("b5")
def test_bill_lies_within_a_tick_of_the_truth(server: Server) -> None:
    with server.account() as client:
        identifier = deploy(client, upload(server, client), "tagger")["id"]
        assert call(client, wait=90).status_code == 200
        worker, truth = watch(server, client, identifier)
        key = client.headers["authorization"].removeprefix("Bearer ")
    server.kill()
    server.start()
    with server.client(key) as client:
        assert call(client, wait=90).status_code == 200, "there is still credit"
        second = wait_weighed(client, identifier)
    assert server.stop() == 0
    first_life, charged = later(server)
    by_worker: dict[str, list[Holding]] = {}
    for one in first_life:
        assert one.is_settled
        by_worker.setdefault(one.subject_id, []).append(one)
    assert set(by_worker) == {worker["id"], second["id"]}
    metered = sum(one.mib_ms for one in by_worker[worker["id"]]) / 1000
    peak = max(one.peak_mib for one in by_worker[worker["id"]])
    assert metered > 0
    assert truth - peak * (TICK_S + BEAT_S) < metered < truth + peak * BEAT_S
    assert sum(one.mib_ms for one in by_worker[second["id"]]) > 0
    total = sum(one.mib_ms for one in first_life) * 1_000_000 // 3_686_400_000
    assert abs(charged - total) <= 1, "what rounding leaves is shared with storage"
