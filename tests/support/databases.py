"""Fixtures with both databases, migrated, for tests of stored rows."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from stoker.store.db import Database
from tests.support import postgres

ACCOUNT = (
    "INSERT INTO accounts (id, name, created_at) VALUES ('acct_1', 'a', '2026-01-01 00:00:00')"
)
"""Statement for any schema. A database with an account is in use."""


@pytest.fixture(scope="package")
def postgres_url() -> Iterator[str]:
    with postgres.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
async def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """Yields a migrated database. The tests of a package share PostgreSQL's and clear the rows that
    would disturb them.
    """
    sqlite = request.param == "sqlite"
    url = f"sqlite+aiosqlite:///{tmp_path}/rows.db" if sqlite else None
    database = Database(url or request.getfixturevalue("postgres_url"))
    await database.migrate()
    yield database
    await database.close()


@contextlib.contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """Yields a list that receives each statement of a database."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)
