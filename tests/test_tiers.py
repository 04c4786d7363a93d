"""Each test has one tier, and uses nothing of a higher one: tests/support/tiers.py."""

from pathlib import Path

import pytest

from tests.support import postgres, server, tiers


def test_a_unit_test_starts_no_server(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert tiers.UNIT in {marker.name for marker in request.node.iter_markers()}
    with pytest.raises(AssertionError, match=r"'unit'.*'system'"):
        server.Server(tmp_path / "data").start()
    server.Server.started.pop()
    with pytest.raises(AssertionError, match=r"'unit'.*'fleet'"), postgres.running():
        pass


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_database_decides(request: pytest.FixtureRequest, database: str) -> None:
    marks = {marker.name for marker in request.node.iter_markers()} & {*tiers.TIERS}
    assert marks == {tiers.UNIT if database == "sqlite" else tiers.FLEET}
