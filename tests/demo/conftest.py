"""One `stoker demo`, shared by the tests that do not harm it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server import Server, running


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("demo") / ".data", "demo") as server:
        yield server


@pytest.fixture(scope="session")
def state(demo: Server) -> dict[str, Any]:
    return json.loads((demo.data_dir / "demo.json").read_text())
