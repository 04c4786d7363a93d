import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, running

# Before torch is loaded anywhere: threads that wait for one another by spinning slow down the
# servers and the other test process beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server, shared by the tests that do not harm it."""
    data_dir: Path = tmp_path_factory.mktemp("server") / "data"
    with running(data_dir) as server:
        yield server
