"""Hypothesis' state machines on a real database. Each rule runs on the database's event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import stoker.demo
from stoker.store import sqlite
from stoker.store.db import Database
from tests.support.app import App, serving
from tests.support.examples import ALWAYS_THE_SAME, examples

T = TypeVar("T")


class Bench:
    """A migrated database and the event loop that owns its connections."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.runner = runner
        self.database = Database(url)
        # SQLite has one process and one `Database`. PostgreSQL has one `Database` per server.
        self.servers = [self.database, self.database if self.is_sqlite else Database(url)]

    @property
    def is_sqlite(self) -> bool:
        return self.database.is_sqlite


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("machines") / "rows.db"
    is_sqlite = request.param == "sqlite"
    url = f"sqlite+aiosqlite:///{path}" if is_sqlite else request.getfixturevalue("postgres_url")
    with hasty(), asyncio.Runner() as runner:
        made = Bench(runner, url)
        runner.run(made.database.migrate())
        yield made
        for database in {*made.servers}:
            runner.run(database.close())


def hasty() -> AbstractContextManager[Any]:
    """Makes SQLite skip disk syncs, like the tests' PostgreSQL. No test cuts the power."""
    return patch.object(sqlite, "_PRAGMAS", (*sqlite._PRAGMAS, "synchronous=OFF"))


class Machine(RuleBasedStateMachine):
    def __init__(self, bench: "Bench | AppBench") -> None:
        super().__init__()
        self.runner = bench.runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)


B = TypeVar("B", "Bench", "AppBench")


def try_out(make: Callable[[B], Machine], bench: B, *, most: int, steps: int = 30) -> None:
    """Runs a state machine with `most` examples on SQLite and a third of them on PostgreSQL."""
    run_state_machine_as_test(
        lambda: make(bench),
        settings=settings(
            max_examples=examples(most if bench.is_sqlite else -(-most // 3)),
            stateful_step_count=steps,
            deadline=None,
            derandomize=ALWAYS_THE_SAME,
            suppress_health_check=list(HealthCheck),
        ),
    )


class AppBench:
    """The whole app and its clients in one process. Tests may stop and restart the app."""

    def __init__(self, runner: asyncio.Runner, data_dir: Path, url: str | None) -> None:
        self.runner = runner
        self.is_sqlite = url is None
        self.app: App
        self._data_dir = data_dir
        self._settings: dict[str, Any] = {
            "database_url": url,
            "source_dirs": [NER],
            "quota_deployments": DEPLOYMENTS_LIMIT,
        }
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._stop = asyncio.Event()
        started: asyncio.Future[App] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            # Starts and stops in one task, as its task groups require.
            async with serving(self._data_dir, **self._settings) as app:
                started.set_result(app)
                await self._stop.wait()

        self._task = asyncio.create_task(serve())
        await asyncio.wait([self._task, started], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await self._task
        self.app = await started

    async def stop(self) -> None:
        self._stop.set()
        if self._task:
            await self._task


NER = Path(stoker.demo.__file__).resolve().parent / "models" / "tiny-ner"
"""Model that needs no imports. Its deployments are never called."""
DEPLOYMENTS_LIMIT = 4


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def app_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppBench]:
    path = tmp_path_factory.mktemp("machines") / "data"
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with hasty(), asyncio.Runner() as runner:
        made = AppBench(runner, path, url)
        runner.run(made.start())
        yield made
        runner.run(made.stop())
