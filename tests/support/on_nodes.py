"""The suite on a fleet: with STOKER_TEST_RUNTIME=nodes each server that a test starts is a gateway,
with a node behind it and a database of a PostgreSQL. Everything else stays as it is.
"""

import asyncio
import atexit
import contextlib
import functools
import itertools
import json
import os
import sys
from pathlib import Path
from typing import ClassVar

import asyncpg

from tests.support import postgres
from tests.support.server import Server

IS_ASKED_FOR = os.environ.get("STOKER_TEST_RUNTIME") == "nodes"

_numbers = itertools.count(1)


def is_asked_for(env: dict[str, str]) -> bool:
    """Whether a server with these settings of its own is to be a gateway."""
    own = ("STOKER_RUNTIME", "STOKER_DATABASE_URL")
    return IS_ASKED_FOR and not env.keys() & {*own}


class NodeHost(Server):
    state: ClassVar[str] = "node.json"
    address: ClassVar[str] = "address"

    def __init__(self, data_dir: Path, python: str = sys.executable, **env: str) -> None:
        super().__init__(data_dir, "node", "host", python=python, **env)

    @property
    def id(self) -> str:
        found: str = json.loads((self.data_dir / self.state).read_text())["id"]
        return found


class Behind:
    """What is behind one gateway."""

    def __init__(self, data_dir: Path, env: dict[str, str]) -> None:
        shared = {
            "STOKER_DATABASE_URL": _new_database(),
            "STOKER_BLOB_URL": f"file://{data_dir.resolve()}/blobs",
        }
        self.env = {"STOKER_RUNTIME": "nodes", **shared, **env}
        place = data_dir.parent / f"{data_dir.name}-node"
        self.node = NodeHost(place, **shared, **env)

    def start(self) -> None:
        if self.node.process is None or self.node.process.poll() is not None:
            self.node.start()

    def stop(self) -> None:
        self.node.stop()


@functools.cache
def _cluster() -> postgres.Cluster:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(postgres.cluster())


def _new_database() -> str:
    name, url = f"stoker{next(_numbers)}", _cluster().url

    async def create() -> None:
        connection = await asyncpg.connect(url.replace("+asyncpg", ""))
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(create())
    return url.rpartition("/")[0] + f"/{name}"
