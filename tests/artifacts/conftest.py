from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from stoker.store import db
from stoker.store.blobs import Blobs
from stoker.store.db import Base, Database
from stoker.store.tables.accounts import Account
from tests.artifacts.support import ACCOUNT, Uploading
from tests.support.models import tiny_bert
from tests.support.server import WITHOUT_MODELS, Server, running


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny, real token classification model."""
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with parts of 1 MiB and low limits, so that tests need few bytes."""
    with running(
        tmp_path_factory.mktemp("small") / "data",
        STOKER_UPLOAD_PART_MIB="1",
        STOKER_ARTIFACT_LIMIT_GIB=str(8 / 1024),
        STOKER_ARTIFACT_FILES_LIMIT="8",
        **WITHOUT_MODELS,
    ) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client of an account of its own."""
    with server.account() as client:
        yield client


@pytest.fixture
def upload(small_server: Server) -> Iterator[Uploading]:
    """An open session on the small server."""
    with small_server.account() as client:
        yield Uploading.open(small_server, client)


@pytest.fixture
def ready(server: Server, client: httpx.Client, bert: Path) -> Uploading:
    """A completed upload of the tiny model."""
    upload = Uploading.open(server, client)
    upload.put_folder(bert)
    assert upload.complete().json()["artifact"]["status"] == "ready"
    return upload


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A database of its own with one account, for services called without a server."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with database.transaction() as session:
        session.add(Account(id=ACCOUNT, name="test", created_at=db.now()))
    yield database
    await database.close()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")
