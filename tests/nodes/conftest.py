from collections.abc import AsyncIterator, Iterator

import pytest

from stoker.store.db import Database
from tests.nodes.support import Fleet, fleet
from tests.support import postgres


@pytest.fixture(scope="package")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as running_cluster:
        yield running_cluster


@pytest.fixture(scope="package")
def fleet_of_two(
    cluster: postgres.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Yields two gateways and two nodes, shared by the tests that do not harm them."""
    with fleet(tmp_path_factory.mktemp("fleet"), cluster) as shared_fleet:
        yield shared_fleet


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """Yields the URL of a database that no other test uses."""
    with postgres.running() as url:
        yield url


@pytest.fixture
async def database(alone: str) -> AsyncIterator[Database]:
    migrated_database = Database(alone)
    await migrated_database.migrate()
    yield migrated_database
    await migrated_database.close()
