"""Runs the test suite on a fleet.

With STOKER_TEST_RUNTIME=nodes, each server that a test starts is a gateway with one node and a
PostgreSQL database. With `ray`, a Ray cluster places the replicas as well. Everything else is
unchanged.
"""

import asyncio
import atexit
import contextlib
import functools
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import asyncpg

from tests.ray.support import Command, free_port
from tests.support import postgres
from tests.support.server import RUNTIME, Server

_numbers = itertools.count(1)


def is_asked_for(env: dict[str, str]) -> bool:
    """Returns True if a server with these settings becomes a gateway."""
    overrides = ("STOKER_RUNTIME", "STOKER_DATABASE_URL")
    return RUNTIME != "" and not env.keys() & {*overrides}


class NodeHost(Server):
    state: ClassVar[str] = "node.json"
    address: ClassVar[str] = "address"

    def __init__(
        self, data_dir: Path, *command: str, python: str = sys.executable, **env: str
    ) -> None:
        super().__init__(data_dir, "node", *(command or ("host",)), python=python, **env)

    @property
    def id(self) -> str:
        identifier: str = json.loads((self.data_dir / self.state).read_text())["id"]
        return identifier


class Behind:
    """Node, database and optional Ray head of one gateway."""

    def __init__(self, data_dir: Path, env: dict[str, str]) -> None:
        self.shared = {
            "database_url": _database_of(data_dir),
            "blob_url": f"file://{data_dir.resolve()}/blobs",
        }
        """Settings that the gateway and its node share."""
        shared = {f"STOKER_{name.upper()}": value for name, value in self.shared.items()}
        self.env = {"STOKER_RUNTIME": RUNTIME, **shared, **env}
        place = data_dir.parent / f"{data_dir.name}-node"
        self._head: Command | None = None
        joining: tuple[str, ...] = ()
        if RUNTIME == "ray":
            port, here = str(free_port()), {"STOKER_RAY_NODE_IP": "127.0.0.1"}
            head = data_dir.parent / f"{data_dir.name}-head"
            words = ("node", "head", "--port", port, "--data-dir", str(head))
            self._head = Command(head.with_suffix(".log"), *words, **shared, **here)
            joining, env = ("join", "--address", f"127.0.0.1:{port}"), {**env, **here}
        self.node = NodeHost(place, *joining, **shared, **env)

    def start(self) -> None:
        if self._head and not self._head.is_running:
            self._head.start()
        if self.node.process is None or self.node.process.poll() is not None:
            self.node.start()

    def stop(self) -> None:
        self.node.stop()
        if self._head:
            self._head.stop()


@functools.cache
def _cluster() -> postgres.Cluster:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(postgres.cluster())


@functools.cache
def _database_of(_data_dir: Path) -> str:
    """Creates the database of a data folder. Later servers on the same folder get the same
    database.
    """
    name, url = f"stoker{next(_numbers)}", _cluster().url

    async def create() -> None:
        connection = await asyncpg.connect(url.replace("+asyncpg", ""))
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    # While a browser test runs, this thread already has a running event loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, create()).result()
    return url.rpartition("/")[0] + f"/{name}"
