"""An inspection fails to store both its result and its need for a repetition."""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.registry.artifacts import completion
from stoker.server.janitor import Janitor
from stoker.store import db
from tests.deployments.support import check_error
from tests.support.app import App, serving
from tests.support.models import tiny_bert

ARTIFACTS = "/v1/model-artifacts"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with serving(tmp_path / "data") as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with await app.account() as client:
        yield client


@pytest.fixture
async def session(client: httpx.AsyncClient, tmp_path: Path) -> str:
    """Returns the path of a session with a completion that failed because the disk was full."""
    session = await uploaded(client, tiny_bert(tmp_path / "bert"))
    with full_disk():
        for _ in range(2):
            refused = await client.post(f"{session}/complete")
            check_error(refused, 503, "CapacityError", "insufficient_storage")
    assert await status(client, session) == "ingesting"
    return session


@pytest.mark.fault("c1")
async def test_upload_is_open_once_there_is_room(
    app: App, client: httpx.AsyncClient, session: str
) -> None:
    await Janitor(app.parts).sweep(db.now())
    assert await status(client, session) == "uploading"
    await check_completed(client, session)


@pytest.mark.fault("c1")
async def test_upload_is_completed_by_who_tries_again(
    client: httpx.AsyncClient, session: str
) -> None:
    await check_completed(client, session)


@pytest.mark.fault("d3")
async def test_upload_of_a_client_that_goes_while_its_files_are_frozen(
    client: httpx.AsyncClient, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client disconnects after the state became `ingesting` and before the inspection begins. The
    upload is open again.
    """
    session = await uploaded(client, tiny_bert(tmp_path / "bert"))
    artifact_id, _, upload_id = session.removeprefix(f"{ARTIFACTS}/").partition("/uploads/")
    ending = asyncio.Event()

    async def never(*_: Any) -> None:
        ending.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(completion.transfers, "end", never)
        account_id = str(client.account_id)  # type: ignore[attr-defined]
        completing = asyncio.create_task(
            completion.complete(app.platform, account_id, artifact_id, upload_id)
        )
        await ending.wait()
        completing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await completing
    assert await status(client, session) == "uploading"
    await check_completed(client, session)


async def check_completed(client: httpx.AsyncClient, session: str) -> None:
    done = (await client.post(f"{session}/complete")).raise_for_status().json()
    assert done["artifact"]["status"] == await status(client, session) == "ready"


@contextmanager
def full_disk() -> Iterator[None]:
    """Simulates a full disk at the end of an inspection."""

    async def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "_settle", full)
        patch.setattr(completion, "_open", full)
        yield


async def status(client: httpx.AsyncClient, session: str) -> str:
    response = await client.get(session.partition("/uploads/")[0])
    return response.raise_for_status().json()["status"]


async def uploaded(client: httpx.AsyncClient, folder: Path) -> str:
    """Uploads all files of a folder and returns the path of the session."""
    made = await client.post(ARTIFACTS, json={"display_name": "bert"})
    uploads = f"{ARTIFACTS}/{made.raise_for_status().json()['id']}/uploads"
    opened = (await client.post(uploads)).raise_for_status().json()
    session = f"{uploads}/{opened['upload_id']}"
    for path in folder.iterdir():
        put = await client.put(f"{session}/files/{path.name}", content=path.read_bytes())
        put.raise_for_status()
    return session
