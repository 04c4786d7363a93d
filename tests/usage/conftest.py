from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stoker.db import Database
from tests.support import postgres
from tests.usage.support import Lab, clear


@pytest.fixture(scope="package")
def postgres_url() -> Iterator[str]:
    with postgres.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    sqlite = request.param == "sqlite"
    url = f"sqlite+aiosqlite:///{tmp_path}/usage.db" if sqlite else None
    database = Database(url or request.getfixturevalue("postgres_url"))
    await database.migrate()
    await clear(database)
    yield database
    await database.close()


@pytest.fixture
async def lab(database: Database) -> Lab:
    lab = Lab(database)
    await lab.metering.open()
    return lab
