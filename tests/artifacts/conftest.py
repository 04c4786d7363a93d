from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from stoker.store import db
from stoker.store.blobs import Folder
from stoker.store.db import Base, Database
from stoker.store.tables.accounts import Account
from tests.artifacts.support import ACCOUNT, Uploading
from tests.support.models import tiny_bert
from tests.support.server import Server


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny, real token classification model."""
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client with a separate account."""
    with server.account() as client:
        yield client


@pytest.fixture
def upload(gateway: Server) -> Iterator[Uploading]:
    """An open session on the server with low limits."""
    with gateway.account() as client:
        yield Uploading.open(gateway, client)


@pytest.fixture
def ready(server: Server, client: httpx.Client, bert: Path) -> Uploading:
    """A completed upload of the tiny model."""
    upload = Uploading.open(server, client)
    upload.put_folder(bert)
    assert upload.complete().json()["artifact"]["status"] == "ready"
    return upload


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A separate database with one account, for services that are called without a server."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with database.transaction() as session:
        session.add(Account(id=ACCOUNT, name="test", created_at=db.now()))
    yield database
    await database.close()


@pytest.fixture
def blobs(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "blobs")
