"""The shell blocks about several servers work as written: see tests.servers.doc_plans."""

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.buckets.conftest import CREDENTIALS
from tests.ray.support import free_port
from tests.servers.doc_plans import FLEET_PLANS
from tests.support import bucket, postgres
from tests.support.doc_blocks import Reader, in_order, replaced
from tests.support.doc_runs import shell_blocks


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with bucket.moto(tmp_path_factory.mktemp("moto") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    """A database with secrets that no other test removes."""
    with postgres.running() as url:
        yield url


@pytest.fixture
def reader(s3: str, database_url: str, tmp_path: Path) -> Iterator[Reader]:
    database = urlsplit(database_url.replace("+asyncpg", ""))
    env = {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": s3,
        "DATABASE": database.geturl(),
        "PGHOST": str(database.hostname),
        "PGPORT": str(database.port),
        "PGUSER": str(database.username),
        "PGDATABASE": database.path.removeprefix("/"),
        "NODE_PORT": str(free_port()),
        "PREFIX": secrets.token_hex(8),
    }
    # The users' environment has no driver of PostgreSQL.
    started = Reader(tmp_path, python=sys.executable, env=env)
    (tmp_path / ".venv" / "bin" / "aws").symlink_to(bucket.AWS)
    yield started
    started.stop()


@pytest.mark.skipif(not postgres.is_installed(), reason=postgres.MISSING)
@pytest.mark.parametrize("page", FLEET_PLANS)
def test_page(page: str, reader: Reader) -> None:
    plan = FLEET_PLANS[page]
    written = "".join(block.text for block in shell_blocks(page))
    output = reader.run(replaced(written, plan.replace) + plan.after)
    assert in_order(plan.shown, output), output
