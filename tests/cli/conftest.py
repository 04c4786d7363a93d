from pathlib import Path

import pytest

from tests.cli.support import Cli, account_cli
from tests.support.models import tiny_bert
from tests.support.server import Server


@pytest.fixture
def cli(server: Server) -> Cli:
    """Returns the command with the key of a new account for this test."""
    server.wait_ready()
    return account_cli(server, "cli")


@pytest.fixture(scope="session")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a tiny BERT for token classification."""
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny-tagger")
