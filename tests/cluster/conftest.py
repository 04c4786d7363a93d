"""A fleet of `stoker cluster up`: two nodes behind two gateways."""

from collections.abc import Iterator

import pytest

from tests.cluster.support import Cluster
from tests.support import postgres


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yields a running fleet.

    Tests may stop it, but must start it again for the next tests.
    """
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    fleet = Cluster(tmp_path_factory.mktemp("cluster") / "data")
    try:
        yield fleet.start()
    finally:
        fleet.stop()
