"""`stoker node join` and `stoker node head` reject invalid options before they start a process."""

from pathlib import Path

import pytest

from tests.cli.support import environment
from tests.ray.support import refused

NOWHERE = "postgresql+asyncpg://stoker:secret@127.0.0.1:1/stoker"


def test_without_a_database(tmp_path: Path) -> None:
    for command in (["join", "--address", "head:6379"], ["head"]):
        message = refused(command, tmp_path, environment())
        assert "'ray' needs a PostgreSQL" in message
        assert "STOKER_DATABASE_URL" in message
    assert not [*tmp_path.iterdir()]


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    env = environment() | {"STOKER_DATABASE_URL": NOWHERE}
    message = refused(["join", "--address", "head:6379"], tmp_path, env)
    assert "The database cannot be reached" in message
    assert "secret" not in message


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:6379/x", "ray://head:6379"])
def test_a_wrong_address(tmp_path: Path, address: str) -> None:
    message = refused(["join", "--address", address], tmp_path, environment())
    assert "host:port" in message
