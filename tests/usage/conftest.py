import pytest

from stoker.store.db import Database
from tests.support.databases import migrated, postgres_url
from tests.usage.support import Lab, clear

__all__ = ["migrated", "postgres_url"]


@pytest.fixture
async def database(migrated: Database) -> Database:
    await clear(migrated)
    return migrated


@pytest.fixture
async def lab(database: Database) -> Lab:
    lab = Lab(database)
    await lab.metering.open()
    return lab
