"""Both databases, migrated: fixtures for tests of what stands in them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stoker.store.db import Database
from tests.support import postgres


@pytest.fixture(scope="package")
def postgres_url() -> Iterator[str]:
    with postgres.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
async def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """PostgreSQL's is shared by a package's tests: they clear what they need to be alone."""
    sqlite = request.param == "sqlite"
    url = f"sqlite+aiosqlite:///{tmp_path}/rows.db" if sqlite else None
    database = Database(url or request.getfixturevalue("postgres_url"))
    await database.migrate()
    yield database
    await database.close()
