from collections.abc import Iterator

import pytest

from tests.servers.support import Pair, pair
from tests.support import postgres
from tests.support.databases import migrated, postgres_url

__all__ = ["migrated", "postgres_url"]


@pytest.fixture(scope="package")
def cluster() -> Iterator[postgres.Cluster]:
    with postgres.cluster() as running_cluster:
        yield running_cluster


@pytest.fixture(scope="package")
def two(cluster: postgres.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yields two servers that are shared by tests without destructive effects."""
    with pair(tmp_path_factory.mktemp("two"), cluster) as servers:
        yield servers
