"""Generated files in a bucket: links, ranges, redirects, expiry."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from obstore.store import S3Store

from stoker.registry.files import service
from stoker.store import db
from stoker.store.tables.files import File, Purpose
from stoker.store.tables.jobs import JobStatus
from stoker.store.tables.videos import Video
from stoker.wire.video_request import VideoAnswer
from stoker.workloads.videos.context import VideoContext
from stoker.workloads.videos.service import CompletedVideo, VideoJob
from tests.buckets.conftest import keys
from tests.buckets.support import code, eventually
from tests.files.test_files import link_to
from tests.support.app import App
from tests.support.bucket import CUT, Proxy

CONTENT = bytes(range(256)) * 4 * 1200
"""Content of 1.2 MiB, which is larger than the first read."""


async def stored(app: App, client: Any, content: bytes = CONTENT) -> File:
    (file,) = await service.store(
        app.platform,
        account_id=client.account_id,
        deployment_id="dep_1",
        purpose=Purpose.IMAGE,
        contents=[content],
        content_type="image/png",
    )
    return file


@pytest.fixture
async def file(app: App, client: httpx.AsyncClient) -> File:
    return await stored(app, client)


def link(app: App, file: File) -> str:
    return link_to(app.platform, "http://stoker", file)


async def test_content(app: App, client: httpx.AsyncClient, file: File, behind: S3Store) -> None:
    assert file.blob_key in keys(behind)
    response = await client.get(f"/v1/files/{file.id}/content")
    assert response.content == CONTENT
    assert response.headers["content-type"] == "image/png"
    assert response.headers["content-length"] == str(len(CONTENT))
    assert response.headers["content-disposition"] == f'inline; filename="{file.id}.png"'
    async with app.client("") as anonymous:
        del anonymous.headers["authorization"]
        assert (await anonymous.get(link(app, file))).content == CONTENT


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("0-0", 0, 1),
        ("100-199", 100, 200),
        ("1000000-1200000", 1_000_000, 1_200_001),
        ("-40", len(CONTENT) - 40, len(CONTENT)),
        ("262140-262150", 262_140, 262_151),
        ("70000-", 70_000, len(CONTENT)),
    ],
)
async def test_ranges(
    client: httpx.AsyncClient, file: File, wanted: str, start: int, end: int
) -> None:
    headers = {"range": f"bytes={wanted}"}
    response = await client.get(f"/v1/files/{file.id}/content", headers=headers)
    assert response.status_code == 206
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
    assert response.content == CONTENT[start:end]


async def test_several_ranges(client: httpx.AsyncClient, file: File) -> None:
    headers = {"range": "bytes=0-9,1000000-1000009"}
    response = await client.get(f"/v1/files/{file.id}/content", headers=headers)
    assert response.status_code == 206
    assert len(response.content) == int(response.headers["content-length"])
    assert CONTENT[:10] in response.content
    assert CONTENT[1_000_000:1_000_010] in response.content


async def test_range_behind_the_end(client: httpx.AsyncClient, file: File) -> None:
    headers = {"range": "bytes=99999999-"}
    response = await client.get(f"/v1/files/{file.id}/content", headers=headers)
    assert code(response) == (416, "range_not_satisfiable")


async def test_of_nothing(app: App, client: httpx.AsyncClient) -> None:
    file = await stored(app, client, b"")
    response = await client.get(f"/v1/files/{file.id}/content")
    assert (response.status_code, response.content) == (200, b"")


async def test_delete(client: httpx.AsyncClient, file: File, behind: S3Store) -> None:
    (await client.delete(f"/v1/files/{file.id}")).raise_for_status()
    assert code(await client.get(f"/v1/files/{file.id}/content")) == (404, "file_not_found")
    await eventually(lambda: file.blob_key not in keys(behind))


async def test_expired_files_go(app: App, file: File, behind: S3Store) -> None:
    platform = app.platform
    await service.sweep(platform.database, platform.blobs, file.expires_at)
    await eventually(lambda: file.blob_key not in keys(behind))


@pytest.mark.fault("g2")
async def test_what_could_not_be_deleted_goes_later(
    app: App, client: httpx.AsyncClient, file: File, behind: S3Store, proxy: Proxy
) -> None:
    platform = app.platform
    proxy.fail(503, method="POST")
    (await client.delete(f"/v1/files/{file.id}")).raise_for_status()
    await eventually(lambda: "POST" in {method for method, _ in proxy.seen})
    assert file.blob_key in keys(behind)
    proxy.heal()
    await service.sweep_strays(platform.database, platform.blobs, db.now() + timedelta(hours=1))
    await eventually(lambda: file.blob_key not in keys(behind))


async def test_lost_bytes_are_not_found(
    app: App, client: httpx.AsyncClient, file: File, behind: S3Store
) -> None:
    await behind.delete_async(file.blob_key)
    assert code(await client.get(f"/v1/files/{file.id}/content")) == (404, "file_not_found")


@pytest.mark.fault("g2")
@pytest.mark.parametrize("fault", [503, CUT])
async def test_a_store_that_is_away(
    app: App, client: httpx.AsyncClient, file: File, proxy: Proxy, fault: int
) -> None:
    proxy.fail(fault)
    response = await client.get(f"/v1/files/{file.id}/content")
    assert code(response) == (503, "store_unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert proxy.address.removeprefix("http://") not in response.text
    # Requests that need no bucket still work.
    assert (await client.get(f"/v1/files/{file.id}")).status_code == 200
    proxy.heal()
    response = await client.get(f"/v1/files/{file.id}/content")
    assert response.raise_for_status().content == CONTENT


class TestRedirects:
    @pytest.fixture(autouse=True)
    def redirecting(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(app.platform.settings, "blob_redirects", True)

    async def test_lead_to_the_bucket(
        self, client: httpx.AsyncClient, file: File, proxy: Proxy
    ) -> None:
        response = await client.get(f"/v1/files/{file.id}/content")
        assert response.status_code == 307
        assert response.headers["cache-control"] == "no-store"
        place = response.headers["location"]
        assert place.startswith(proxy.address)
        assert "X-Amz-Signature=" in place
        async with httpx.AsyncClient() as anybody:
            partial = await anybody.get(place, headers={"range": "bytes=5-9"})
        assert partial.content == CONTENT[5:10]
        assert partial.headers["content-type"] == "image/png"


class TestVideos:
    """Steps of a video job. A prepared answer replaces a model that takes minutes."""

    async def test_result_is_kept_in_the_bucket(
        self, app: App, client: Any, behind: S3Store
    ) -> None:
        context = app.parts.get(VideoContext)
        making = VideoJob(context)
        async with context.database.transaction() as session:
            row = Video(
                id="video_1",
                account_id=client.account_id,
                deployment_id="dep_1",
                model="film",
                pipeline="text-to-video",
                prompt="a film",
                parameters={},
                status=JobStatus.COMPLETED.value,
                progress=1.0,
                tries=1,
                losses=0,
                created_at=db.now(),
            )
            session.add(row)
        answer = VideoAnswer(
            video=CONTENT,
            thumbnail=b"small",
            width=8,
            height=8,
            frames=24,
            fps=24,
            seconds=1.0,
        )
        video = await making._write(row, Purpose.VIDEO, answer.video, "video/mp4")
        thumbnail = await making._write(row, Purpose.THUMBNAIL, answer.thumbnail, "image/webp")
        made = CompletedVideo(answer, video, thumbnail)
        async with context.database.transaction() as session:
            row = await session.get_one(Video, row.id)
            await making.keep(session, row, made)
            for name, value in making.outcome(row, made).values.items():
                setattr(row, name, value)
        path = f"/v1/videos/{row.id}/content"
        assert (await client.get(path)).raise_for_status().content == CONTENT
        small = await client.get(path, params={"variant": "thumbnail"})
        assert small.raise_for_status().content == b"small"
        part = await client.get(path, headers={"range": "bytes=300000-300009"})
        assert part.content == CONTENT[300_000:300_010]
        blob_keys = {video.blob_key, thumbnail.blob_key}
        assert blob_keys <= {*keys(behind, "files")}
        (await client.delete(f"/v1/videos/{row.id}")).raise_for_status()
        await eventually(lambda: not blob_keys & {*keys(behind, "files")})
