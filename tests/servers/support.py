"""Several servers on one PostgreSQL."""

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
"""How long a database is gone: longer than keys are trusted, so that calls are refused."""
SOON_S = 2.0
"""How long another server may take to follow."""
SLACK_S = 6.0
"""And how much longer a machine may that others use."""


@dataclass
class Pair:
    cluster: postgres.Cluster
    a: Server
    b: Server

    def account(self) -> tuple[httpx.Client, httpx.Client]:
        """Clients of both, with the key of a new account."""
        on_a = self.a.account()
        key = on_a.headers["authorization"].removeprefix("Bearer ")
        return on_a, self.b.client(key)


@contextlib.contextmanager
def pair(root: Path, cluster: postgres.Cluster, **env: str) -> Iterator[Pair]:
    """Two, started at the same time, that share the folder of blobs and nothing else."""
    given = {"STOKER_DATABASE_URL": cluster.url, "STOKER_BLOB_URL": f"file://{root}/blobs", **env}
    servers = [Server(root / name / "data", **given) for name in "ab"]
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
    """What is found once it is anything, and after how many seconds."""
    begun = time.monotonic()
    while not (what := found()):
        assert time.monotonic() - begun < patience_s, "it did not come about"
        time.sleep(0.02)
    return what, time.monotonic() - begun
