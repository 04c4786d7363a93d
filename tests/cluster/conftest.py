"""One fleet, as `stoker cluster up` starts it: two nodes behind two gateways."""

from collections.abc import Iterator

import pytest

from tests.cluster.support import Cluster
from tests.support import postgres


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Tests may end it, and start it again; what follows has it running."""
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    found = Cluster(tmp_path_factory.mktemp("cluster") / "data")
    try:
        yield found.start()
    finally:
        found.stop()
