"""Files that clients upload, in a bucket."""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from obstore.store import S3Store

from stoker.registry.files import service
from stoker.store import db
from tests.buckets.conftest import keys
from tests.buckets.support import MIB, code, eventually
from tests.support.app import App
from tests.support.bucket import Proxy

CONTENT = bytes(range(256)) * 4096 * 20
"""Content of 20 MiB, which is larger than one request to the bucket."""


async def post(client: httpx.AsyncClient, content: bytes = CONTENT) -> httpx.Response:
    files = {"file": ("a.html", content, "text/html")}
    return await client.post("/v1/files", data={"purpose": "user_data"}, files=files)


async def begin(client: httpx.AsyncClient, size: int) -> str:
    asked = {"filename": "a", "purpose": "batch", "mime_type": "text/plain", "bytes": size}
    return (await client.post("/v1/uploads", json=asked)).raise_for_status().json()["id"]


async def add(client: httpx.AsyncClient, upload: str, content: bytes) -> str:
    response = await client.post(f"/v1/uploads/{upload}/parts", files={"data": content})
    return response.raise_for_status().json()["id"]


async def test_upload_and_ranges(client: httpx.AsyncClient, behind: S3Store) -> None:
    file = (await post(client)).raise_for_status().json()
    assert f"files/{file['id']}" in keys(behind, "files")
    path = f"/v1/files/{file['id']}/content"
    response = await client.get(path)
    assert response.content == CONTENT
    assert response.headers["content-disposition"] == 'attachment; filename="a.html"'
    response = await client.get(path, headers={"range": "bytes=17000000-17000009"})
    assert response.content == CONTENT[17_000_000:17_000_010]
    await client.delete(f"/v1/files/{file['id']}")
    await eventually(lambda: f"files/{file['id']}" not in keys(behind, "files"))


async def test_bucket_links_are_downloads(
    app: App, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket serves a page as bytes without a type, so no browser shows it."""
    monkeypatch.setattr(app.platform.settings, "blob_redirects", True)
    file = (await post(client, b"<script>1</script>")).json()["id"]
    place = (await client.get(f"/v1/files/{file}/content")).headers["location"]
    async with httpx.AsyncClient() as anybody:
        answer = await anybody.get(place)
    assert answer.content == b"<script>1</script>"
    assert answer.headers["content-type"] == "application/octet-stream"


async def test_parts(client: httpx.AsyncClient, behind: S3Store) -> None:
    upload = await begin(client, len(CONTENT))
    pieces = [CONTENT[start : start + 7 * MIB] for start in range(0, len(CONTENT), 7 * MIB)]
    parts = [await add(client, upload, piece) for piece in reversed(pieces)]
    assert {f"file-parts/{part}" for part in parts} <= {*keys(behind, "file-parts")}
    md5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    body = {"part_ids": parts[::-1], "md5": md5}
    done = (await client.post(f"/v1/uploads/{upload}/complete", json=body)).raise_for_status()
    file = done.json()["file"]["id"]
    assert (await client.get(f"/v1/files/{file}/content")).content == CONTENT
    await eventually(lambda: keys(behind, "file-parts") == [])


@pytest.mark.fault("g2")
async def test_a_store_that_is_away(
    client: httpx.AsyncClient, behind: S3Store, proxy: Proxy, data_dir: Path
) -> None:
    upload = await begin(client, MIB)
    part = await add(client, upload, bytes(MIB))
    before = keys(behind, "files")
    proxy.fail(503)
    assert code(await post(client, bytes(MIB))) == (503, "store_unavailable")
    complete: Any = (f"/v1/uploads/{upload}/complete",)
    body = {"part_ids": [part]}
    assert code(await client.post(*complete, json=body)) == (503, "store_unavailable")
    proxy.heal()
    assert keys(behind, "files") == before
    assert (await client.get("/v1/files")).json()["data"] == []
    assert [*(data_dir / "spool").iterdir()] == []
    done = await client.post(*complete, json=body)
    assert done.raise_for_status().json()["file"]["bytes"] == MIB


async def test_lost_parts_are_not_found(client: httpx.AsyncClient, behind: S3Store) -> None:
    upload = await begin(client, 1)
    part = await add(client, upload, b"x")
    await behind.delete_async(f"file-parts/{part}")
    response = await client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]})
    assert code(response) == (409, "upload_closed")


async def test_parts_without_a_row_go_once_they_are_old(app: App, behind: S3Store) -> None:
    platform = app.platform
    stray = f"{service.PART_BLOBS}part_0{'0' * 25}"
    await platform.blobs.put(stray, b"its server was killed", "")
    await service.sweep_strays(platform.database, platform.blobs, db.now())
    assert stray in keys(behind, "file-parts")
    later = db.now() + 2 * service.STRAY_AFTER
    await service.sweep_strays(platform.database, platform.blobs, later)
    await eventually(lambda: stray not in keys(behind, "file-parts"))
