"""Helpers for several servers on one PostgreSQL."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from tests.support import postgres
from tests.support.server import Server

T = TypeVar("T")

PATIENCE_S = 30.0
OUTAGE_S = 20.0
"""Duration of a database outage in seconds. It exceeds the time for which keys are cached, so that
calls are rejected.
"""
SOON_S = 2.0
"""Seconds within which another server applies a change."""
SLACK_S = 6.0
"""Additional seconds that a busy machine may need."""


@dataclass
class Pair:
    cluster: postgres.Cluster
    a: Server
    b: Server

    def account(self) -> tuple[httpx.Client, httpx.Client]:
        """Returns clients of both servers with the key of a new account."""
        on_a = self.a.account()
        key = on_a.headers["authorization"].removeprefix("Bearer ")
        return on_a, self.b.client(key)


@contextlib.contextmanager
def pair(root: Path, cluster: postgres.Cluster, **env: str) -> Iterator[Pair]:
    """Starts two servers at the same time. They share the database and the blob folder, but no data
    folder.
    """
    settings = {
        "STOKER_DATABASE_URL": cluster.url,
        "STOKER_BLOB_URL": f"file://{root}/blobs",
        **env,
    }
    servers = [Server(root / name / "data", **settings) for name in "ab"]
    for server in servers:
        server.data_dir.parent.mkdir(parents=True)
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Server.start, servers))
        yield Pair(cluster, *servers)
    finally:
        for server in servers:
            server.stop()


def until(found: Callable[[], T], patience_s: float = PATIENCE_S) -> tuple[T, float]:
    """Polls `found` until it returns a true value. Returns the value and the elapsed seconds."""
    begun = time.monotonic()
    while not (value := found()):
        assert time.monotonic() - begun < patience_s, "it did not come about"
        time.sleep(0.02)
    return value, time.monotonic() - begun
