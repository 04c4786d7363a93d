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
"""Maximum age in seconds of a worker's size when it is metered."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "data", **WITHOUT_MODELS) as server:
        yield server


def ticked(server: Server) -> int:
    """Returns the time of the worker's last stored tick in ms since 1970, or 0 if none was
    stored.
    """
    with sqlite3.connect(f"file:{server.data_dir}/stoker.db?mode=ro", uri=True) as database:
        (latest_ms,) = database.execute(
            "select max(ended_ms) from holdings where kind = 'memory' and mib_ms > 0"
        ).fetchone()
    return latest_ms or 0


def watch(server: Server, client: httpx.Client, identifier: str) -> tuple[Any, float]:
    """Watches a worker until some seconds after a tick. Returns the worker and its memory in
    MiB-seconds.
    """
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
    """Waits until the server knows the worker's size and has metered it briefly. Returns the
    worker.
    """
    deadline = time.monotonic() + 30
    while True:
        (worker,) = deployment(client, identifier)["workers"]
        if worker["memory_bytes"]:
            time.sleep(BEAT_S)
            return worker
        assert time.monotonic() < deadline
        time.sleep(0.1)


def later(server: Server) -> tuple[list[Holding], int]:
    """Bills the data of a stopped server as a later server would. Returns the holdings and the
    charged amount.
    """

    async def bill() -> tuple[list[Holding], int]:
        database = Database(f"sqlite+aiosqlite:///{server.data_dir}/stoker.db")
        try:
            now_ms = int(time.time() * 1000) + STALE_MS + 1
            lab = Lab(database, Clock(wall_ms=now_ms))
            for _ in range(3):
                await lab.metering.open()
            await lab.check_ledger()
            holdings = [holding for holding in await lab.rows(Holding) if holding.kind == "memory"]
            return holdings, sum(holding.charged_microcredits for holding in holdings)
        finally:
            await database.close()

    return asyncio.run(bill())


@pytest.mark.release
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
    for holding in first_life:
        assert holding.is_settled
        by_worker.setdefault(holding.subject_id, []).append(holding)
    assert set(by_worker) == {worker["id"], second["id"]}
    metered = sum(holding.mib_ms for holding in by_worker[worker["id"]]) / 1000
    peak = max(holding.peak_mib for holding in by_worker[worker["id"]])
    assert metered > 0
    assert truth - peak * (TICK_S + BEAT_S) < metered < truth + peak * BEAT_S
    assert sum(holding.mib_ms for holding in by_worker[second["id"]]) > 0
    total = sum(holding.mib_ms for holding in first_life) * 1_000_000 // 3_686_400_000
    assert abs(charged - total) <= 1, "what rounding leaves is shared with storage"
