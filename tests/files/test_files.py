"""Files of generated content: links, ranges, expiry, and complete removal."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from starlette.requests import Request

from stoker.base.errors import CapacityError
from stoker.base.ids import made_at
from stoker.platform.jobs.runner import PASSING
from stoker.platform.web.context import Platform
from stoker.platform.web.prefix import base_url
from stoker.registry.files import service
from stoker.server.services import build_services
from stoker.store import db
from stoker.store.tables.files import File, Purpose
from tests.support.server import Server

CONTENT = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def server(gateway: Server) -> Server:
    return gateway


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with server.account() as client:
        yield client


@pytest.fixture
async def platform(server: Server) -> AsyncIterator[Platform]:
    """A second platform on the server's own storage."""
    platform = build_services(server.settings).get(Platform)
    await platform.secret.agree(platform.database)
    yield platform
    await platform.media.close()
    await platform.database.close()


@pytest.fixture
async def file(platform: Platform, client: Any) -> File:
    (file,) = await service.store(
        platform,
        account_id=client.account_id,
        deployment_id="dep_1",
        purpose=Purpose.IMAGE,
        contents=[CONTENT],
        content_type="image/png",
    )
    return file


def link_to(platform: Platform, address: str, file: File) -> str:
    """Returns the link to a file for a client that sent its request to this address."""
    scheme, _, host = address.partition("://")
    headers = [(b"host", host.encode())]
    request = Request({"type": "http", "scheme": scheme, "path": "/", "headers": headers})
    return service.link(platform, base_url(request, platform.settings.public_url), file)


@pytest.fixture
def link(platform: Platform, server: Server, file: File) -> str:
    return link_to(platform, server.base_url, file)


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


class TestContent:
    @pytest.mark.case(25, 26)
    async def test_needs_key_or_link(self, server: Server, client: Any, file: File, link: str):
        path = f"/v1/files/{file.id}/content"
        with server.client() as anonymous, server.account("other") as stranger:
            assert code(anonymous.get(path)) == (401, "invalid_api_key")
            assert code(stranger.get(path)) == (404, "file_not_found")
            assert anonymous.get(link).content == CONTENT
        response = client.get(path)
        assert response.content == CONTENT
        assert response.headers["content-type"] == "image/png"
        assert response.headers["content-length"] == str(len(CONTENT))
        assert response.headers["content-disposition"] == f'inline; filename="{file.id}.png"'
        assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "private" in response.headers["cache-control"]

    @pytest.mark.parametrize(
        ("wanted", "start", "end"),
        [("0-0", 0, 1), ("100-199", 100, 200), ("10200-", 10200, 10240), ("-40", 10200, 10240)],
    )
    async def test_ranges(self, client: Any, file: File, wanted: str, start: int, end: int):
        headers = {"range": f"bytes={wanted}"}
        response = client.get(f"/v1/files/{file.id}/content", headers=headers)
        assert response.status_code == 206
        assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
        assert response.content == CONTENT[start:end]

    async def test_of_several_those_that_are_there(self, client: Any, file: File):
        """Existing ranges are returned. Previously, one range behind the end caused all of them to
        be rejected.
        """
        headers = {"range": "bytes=99999-, 5-9, -0"}
        response = client.get(f"/v1/files/{file.id}/content", headers=headers)
        assert (response.status_code, response.content) == (206, CONTENT[5:10])
        assert response.headers["content-range"] == f"bytes 5-9/{len(CONTENT)}"

    @pytest.mark.parametrize(
        "wanted",
        [
            *("bytes=5-3", "bytes=nonsense", "bytes=", "lines=1-2", "5"),
            # Text that Python parses as a number, and a valid range next to an invalid one.
            *("bytes=1_0-2_0", "bytes=+1-2", "bytes=0-1,x", "bytes=-1-", "bytes=--1"),
        ],
    )
    async def test_range_that_is_none(self, client: Any, file: File, wanted: str):
        response = client.get(f"/v1/files/{file.id}/content", headers={"range": wanted})
        assert code(response) == (400, "invalid_request")
        assert response.json()["error"]["param"] == "range"

    async def test_range_behind_the_end(self, client: Any, file: File):
        headers = {"range": "bytes=99999-"}
        response = client.get(f"/v1/files/{file.id}/content", headers=headers)
        assert code(response) == (416, "range_not_satisfiable")
        assert response.headers["content-range"] == f"bytes */{len(CONTENT)}"
        assert str(len(CONTENT)) in response.json()["error"]["message"]

    @pytest.mark.case(19)
    async def test_thousands_of_ranges_are_not_joined(self, client: Any, file: File):
        """Thousands of ranges are answered with the whole file. Joining them took quadratic time
        (CVE-2025-62727).
        """
        ranges = ",".join(f"{n}-{n}" for n in range(0, 10_000, 2))
        response = client.get(f"/v1/files/{file.id}/content", headers={"range": f"bytes={ranges}"})
        assert (response.status_code, response.content) == (200, CONTENT)


@pytest.mark.case(26)
class TestLink:
    async def test_is_bound_to_one_file_and_one_time(
        self, server: Server, platform: Platform, client: Any, file: File, link: str
    ):
        (other,) = await service.store(
            platform,
            account_id=client.account_id,
            deployment_id="dep_1",
            purpose=Purpose.IMAGE,
            contents=[b"other"],
            content_type="image/png",
        )
        expires = int(file.expires_at.timestamp())
        with server.client() as anonymous:
            for bad in (
                link.replace(file.id, other.id),
                link.replace(f"expires={expires}", f"expires={expires + 1}"),
                link[:-1] + ("0" if link[-1] != "0" else "1"),
                link.partition("&")[0],
                link.partition("signature=")[0] + "signature=%C3%A9",
            ):
                assert code(anonymous.get(bad)) == (401, "invalid_api_key"), bad
            assert anonymous.get(link + "x" * 100).status_code == 400

    async def test_says_that_it_has_expired(self, server: Server, platform: Platform, file: File):
        file.expires_at = db.now() - timedelta(seconds=1)
        link = link_to(platform, server.base_url, file)
        with server.client() as anonymous:
            assert code(anonymous.get(link)) == (404, "link_expired")

    async def test_begins_as_the_operator_says(
        self, server: Server, platform: Platform, file: File
    ):
        settings = platform.settings.model_copy(update={"public_url": "https://m.example/api/"})
        public = Platform(**{**platform.__dict__, "settings": settings})
        link = link_to(public, server.base_url, file)
        assert link.startswith(f"https://m.example/api/v1/files/{file.id}/content?")


class TestObject:
    async def test_get_and_list(self, client: Any, file: File):
        shown = client.get(f"/v1/files/{file.id}").json()
        assert shown == {
            "id": file.id,
            "object": "file",
            "bytes": len(CONTENT),
            "created_at": int(file.created_at.timestamp()),
            "expires_at": int(file.expires_at.timestamp()),
            "filename": f"{file.id}.png",
            "purpose": "image",
            "status": "processed",
            "content_type": "image/png",
        }
        assert client.get("/v1/files").json()["data"][0] == shown

    async def test_delete(self, client: Any, platform: Platform, file: File):
        path = platform.blobs.local_path(file.blob_key)
        assert path.read_bytes() == CONTENT
        deleted = client.delete(f"/v1/files/{file.id}").json()
        assert deleted == {"id": file.id, "object": "file", "deleted": True}
        assert not path.exists()
        assert code(client.get(f"/v1/files/{file.id}/content")) == (404, "file_not_found")


class TestSweeping:
    async def test_expired_files_go(self, platform: Platform, file: File):
        path = platform.blobs.local_path(file.blob_key)
        await service.sweep(
            platform.database, platform.blobs, file.expires_at - timedelta(seconds=1)
        )
        assert path.exists()
        await service.sweep(platform.database, platform.blobs, file.expires_at)
        assert not path.exists()
        async with platform.database.reading() as session:
            assert await session.scalar(select(File).where(File.id == file.id)) is None

    async def test_nothing_is_left_of_what_nobody_waits_for(
        self, platform: Platform, client: Any
    ) -> None:
        folder = Path(platform.settings.data_dir) / "blobs" / "files"
        before = {*folder.iterdir()}
        storing = asyncio.create_task(
            service.store(
                platform,
                account_id=client.account_id,
                deployment_id="dep_1",
                purpose=Purpose.IMAGE,
                contents=[CONTENT] * 500,
                content_type="image/png",
            )
        )
        async with asyncio.timeout(30):
            while len({*folder.iterdir()} - before) < 2:
                await asyncio.sleep(0)
        storing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await storing
        assert {*folder.iterdir()} == before

    async def test_bytes_without_a_row_go_once_they_are_old(
        self, platform: Platform, file: File, client: Any
    ):
        stray = await service.write(
            platform,
            account_id=client.account_id,
            deployment_id="dep_1",
            purpose=Purpose.VIDEO,
            content=b"its server was killed before the row was there",
            content_type="video/mp4",
        )
        path = platform.blobs.local_path(stray.blob_key)
        made = made_at(stray.id)
        assert made is not None and abs(made - time.time()) < 10
        await service.sweep_strays(platform.database, platform.blobs, db.now())
        assert path.exists(), "it may be on its way"
        later = db.now() + service.STRAY_AFTER
        await service.sweep_strays(platform.database, platform.blobs, later)
        assert not path.exists()
        assert platform.blobs.local_path(file.blob_key).exists()


def test_files_are_the_servers_alone(server: Server) -> None:
    folder = Path(server.data_dir) / "blobs" / "files"
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


class TestFullDisk:
    @pytest.mark.fault("c2")
    async def test_nothing_is_left_and_it_is_said(self, platform: Platform, client: Any) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        folder = platform.blobs.root / "files"
        before = sorted(folder.glob("*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(CapacityError) as caught:
                await service.store(
                    platform,
                    account_id=client.account_id,
                    deployment_id="dep_1",
                    purpose=Purpose.IMAGE,
                    contents=[CONTENT, bytes(2 << 20)],
                    content_type="image/png",
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        # A job retries after this error when it writes its result, because the error says nothing
        # about the job.
        assert isinstance(caught.value, PASSING)
        assert caught.value.code == "insufficient_storage"
        assert sorted(folder.glob("*")) == before
