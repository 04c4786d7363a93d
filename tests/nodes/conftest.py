from collections.abc import AsyncIterator, Iterator

import pytest

from stoker.store.db import Database
from tests.nodes.support import Fleet, fleet
from tests.support import postgres


@pytest.fixture(scope="package")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as found:
        yield found


@pytest.fixture(scope="package")
def fleet_of_two(
    cluster: postgres.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two gateways and two nodes, shared by the tests that do not harm them."""
    with fleet(tmp_path_factory.mktemp("fleet"), cluster) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """The URL of a database that nobody else uses."""
    with postgres.running() as url:
        yield url


@pytest.fixture
async def database(alone: str) -> AsyncIterator[Database]:
    found = Database(alone)
    await found.migrate()
    yield found
    await found.close()
