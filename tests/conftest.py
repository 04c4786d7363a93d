import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, running

# Before torch is loaded anywhere: threads that wait for one another by spinning slow down the
# servers and the other test process beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


SLOW = (
    "test_faults.py",
    "demo/",
    "cli/",
    "deployments/",
    "artifacts/test_faults.py",
    "test_postgres.py",
    "test_errors.py",
)
"""Begun first, so that no process is left with them when the other has finished."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files. Where several processes run, each takes the next one, as a whole.

    The files that share the one `stoker demo` go to one process.
    """

    def rank(item: pytest.Item) -> int:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        return next((at for at, slow in enumerate(SLOW) if place.startswith(slow)), len(SLOW))

    items.sort(key=rank)
    shared = {item.path for item in items if "demo" in getattr(item, "fixturenames", ())}
    for item in items:
        group = "demo" if item.path in shared else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server, shared by the tests that do not harm it."""
    data_dir: Path = tmp_path_factory.mktemp("server") / "data"
    with running(data_dir) as server:
        yield server
