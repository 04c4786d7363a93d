"""Files that clients upload in parts."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.platform.web.context import Platform
from stoker.registry.files import service, uploads
from stoker.server.services import build_services
from stoker.store import db
from tests.files.conftest import FILE_LIMIT, MIB, stored
from tests.support.disks import small_disk
from tests.support.server import WITHOUT_MODELS, Server, running

ONE, TWO, THREE = b"1" * 1000, b"2" * 2000, b"3" * 7
WHOLE = ONE + TWO + THREE


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def begin(client: httpx.Client, size: int = len(WHOLE), **fields: Any) -> str:
    asked = {"filename": "a.bin", "purpose": "user_data", "mime_type": "text/plain"}
    response = client.post("/v1/uploads", json={**asked, "bytes": size, **fields})
    return response.raise_for_status().json()["id"]


def add(client: httpx.Client, upload: str, content: bytes) -> str:
    response = client.post(f"/v1/uploads/{upload}/parts", files={"data": content})
    return response.raise_for_status().json()["id"]


def complete(client: httpx.Client, upload: str, *parts: str, **fields: Any) -> httpx.Response:
    return client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": parts, **fields})


def content(client: httpx.Client, file: str) -> bytes:
    return client.get(f"/v1/files/{file}/content").raise_for_status().content


@pytest.fixture
async def platform(small: Server) -> AsyncIterator[Platform]:
    """A second platform on the server's own storage."""
    platform = build_services(small.settings).get(Platform)
    yield platform
    await platform.media.close()
    await platform.database.close()


class TestParts:
    def test_order_is_that_of_the_list(self, small: Server, owner: httpx.Client):
        before = stored(small)
        upload = begin(owner)
        three, one, two = (add(owner, upload, part) for part in (THREE, ONE, TWO))
        done = complete(owner, upload, one, two, three).raise_for_status().json()
        assert (done["status"], done["object"]) == ("completed", "upload")
        file = done["file"]
        assert content(owner, file["id"]) == WHOLE
        assert (file["filename"], file["bytes"]) == ("a.bin", len(WHOLE))
        assert stored(small) - before == {f"files/{file['id']}"}

    def test_parts_in_parallel(self, owner: httpx.Client):
        pieces = [bytes([n]) * MIB for n in range(8)]
        upload = begin(owner, 8 * MIB)
        with ThreadPoolExecutor(4) as pool:
            parts = [*pool.map(lambda piece: add(owner, upload, piece), pieces)]
        done = complete(owner, upload, *parts).raise_for_status().json()
        assert content(owner, done["file"]["id"]) == b"".join(pieces)

    def test_parts_that_are_not_named_are_dropped(self, small: Server, owner: httpx.Client):
        before = stored(small)
        upload = begin(owner, len(ONE))
        add(owner, upload, ONE)
        again = add(owner, upload, ONE)
        done = complete(owner, upload, again).raise_for_status().json()
        assert stored(small) - before == {f"files/{done['file']['id']}"}

    def test_received_parts_are_shown(self, owner: httpx.Client):
        upload = begin(owner)
        part = add(owner, upload, ONE)
        shown = owner.get(f"/v1/uploads/{upload}").json()
        assert (shown["status"], shown["file"]) == ("pending", None)
        assert [(one["id"], one["bytes"]) for one in shown["parts"]] == [(part, len(ONE))]

    def test_too_large_part(self, owner: httpx.Client):
        upload = begin(owner)
        response = owner.post(
            f"/v1/uploads/{upload}/parts", files={"data": bytes(uploads.PART_BYTES + 1)}
        )
        assert code(response) == (413, "payload_too_large")

    def test_many_more_bytes_than_declared(self, owner: httpx.Client, small: Server):
        before = stored(small)
        upload = begin(owner, 1)
        add(owner, upload, bytes(uploads.PART_BYTES))
        response = owner.post(f"/v1/uploads/{upload}/parts", files={"data": b"xyz"})
        assert code(response) == (413, "payload_too_large")
        owner.post(f"/v1/uploads/{upload}/cancel").raise_for_status()
        assert stored(small) == before

    def test_repeated_part_with_an_idempotency_key(self, owner: httpx.Client):
        upload = begin(owner)
        path, headers = f"/v1/uploads/{upload}/parts", {"idempotency-key": "part-1"}
        first, again = (
            owner.post(path, files={"data": ONE}, headers=headers).json() for _ in range(2)
        )
        assert again == first
        assert len(owner.get(f"/v1/uploads/{upload}").json()["parts"]) == 1


class TestComplete:
    def test_repeated(self, owner: httpx.Client):
        upload = begin(owner, len(ONE))
        part = add(owner, upload, ONE)
        first = complete(owner, upload, part).json()
        assert complete(owner, upload, part).json() == first
        assert len(owner.get("/v1/files").json()["data"]) == 1

    def test_at_the_same_time(self, small: Server, owner: httpx.Client):
        before = stored(small)
        upload = begin(owner, 8 * MIB)
        part = add(owner, upload, bytes(8 * MIB))
        with ThreadPoolExecutor(4) as pool:
            answers = [*pool.map(lambda _: complete(owner, upload, part), range(4))]
        assert len({answer.raise_for_status().json()["file"]["id"] for answer in answers}) == 1
        assert len(owner.get("/v1/files").json()["data"]) == 1
        assert len(stored(small) - before) == 1

    def test_wrong_parts(self, owner: httpx.Client):
        upload = begin(owner)
        one, two, three = (add(owner, upload, part) for part in (ONE, TWO, THREE))
        other = add(owner, begin(owner), ONE)
        for parts, param in (
            ([one, three], "part_ids"),
            ([one, one, two, three], "part_ids"),
            ([one, other], "part_ids[1]"),
            ([one, "part_none"], "part_ids[1]"),
            ([], "part_ids"),
        ):
            response = complete(owner, upload, *parts)
            assert (code(response), response.json()["error"]["param"]) == (
                (400, "invalid_request"),
                param,
            )
        assert complete(owner, upload, one, two, three).status_code == 200

    def test_md5_shows_the_wrong_order(self, small: Server, owner: httpx.Client):
        md5 = hashlib.md5(WHOLE, usedforsecurity=False).hexdigest()
        upload = begin(owner)
        one, two, three = (add(owner, upload, part) for part in (ONE, TWO, THREE))
        before = stored(small)
        response = complete(owner, upload, two, one, three, md5=md5)
        assert code(response) == (400, "digest_mismatch")
        assert stored(small) == before
        assert complete(owner, upload, one, two, three, md5="x").status_code == 400
        done = complete(owner, upload, one, two, three, md5=md5.upper())
        assert content(owner, done.raise_for_status().json()["file"]["id"]) == WHOLE

    def test_file_is_deleted_later(self, owner: httpx.Client):
        upload = begin(owner, len(ONE))
        part = add(owner, upload, ONE)
        file = complete(owner, upload, part).json()["file"]["id"]
        owner.delete(f"/v1/files/{file}").raise_for_status()
        assert complete(owner, upload, part).json()["file"] is None

    def test_expiry_counts_from_completion(self, owner: httpx.Client):
        upload = begin(owner, len(ONE), expires_after={"anchor": "created_at", "seconds": 3600})
        part = add(owner, upload, ONE)
        file = complete(owner, upload, part).json()["file"]
        assert file["expires_at"] == pytest.approx(file["created_at"] + 3600, abs=1)


class TestClosed:
    def test_cancelled(self, small: Server, owner: httpx.Client):
        before = stored(small)
        upload = begin(owner)
        part = add(owner, upload, ONE)
        assert stored(small) - before == {f"file-parts/{part}"}
        for _ in range(2):
            cancelled = owner.post(f"/v1/uploads/{upload}/cancel").raise_for_status().json()
            assert cancelled["status"] == "cancelled"
        assert stored(small) == before
        refused = owner.post(f"/v1/uploads/{upload}/parts", files={"data": ONE})
        assert code(refused) == (409, "upload_closed")
        assert code(complete(owner, upload, part)) == (409, "upload_closed")

    def test_completed_cannot_be_cancelled(self, owner: httpx.Client):
        upload = begin(owner, len(ONE))
        complete(owner, upload, add(owner, upload, ONE)).raise_for_status()
        assert code(owner.post(f"/v1/uploads/{upload}/cancel")) == (409, "upload_closed")

    async def test_expired(self, small: Server, owner: httpx.Client, platform: Platform):
        upload = begin(owner, len(ONE))
        part = add(owner, upload, ONE)
        expiry = owner.get(f"/v1/uploads/{upload}").json()
        assert expiry["expires_at"] == pytest.approx(expiry["created_at"] + 3600, abs=1)
        later = db.now() + uploads.OPEN_FOR
        await uploads.expire(platform.database, platform.blobs, later)
        assert f"file-parts/{part}" not in stored(small)
        assert owner.get(f"/v1/uploads/{upload}").json()["status"] == "expired"
        assert code(complete(owner, upload, part)) == (409, "upload_closed")
        await uploads.expire(
            platform.database, platform.blobs, later + uploads.CLOSED_KEPT + timedelta(minutes=1)
        )
        assert code(owner.get(f"/v1/uploads/{upload}")) == (404, "upload_not_found")

    async def test_cancelled_while_it_is_completed(
        self, small: Server, owner: httpx.Client
    ) -> None:
        """The file is whole, or there is none."""
        before = stored(small)
        upload = begin(owner, FILE_LIMIT)
        part = add(owner, upload, bytes(FILE_LIMIT))
        completing = asyncio.create_task(asyncio.to_thread(complete, owner, upload, part))
        cancelled = await asyncio.to_thread(owner.post, f"/v1/uploads/{upload}/cancel")
        done = await completing
        assert {done.status_code, cancelled.status_code} == {200, 409}
        assert len(stored(small) - before) == (1 if done.status_code == 200 else 0)


class TestRefused:
    @pytest.mark.parametrize(
        "fields",
        [
            {"bytes": 0},
            {"bytes": "7"},
            {"purpose": "vision"},
            {"filename": "/"},
            {"filename": "a\x00"},
            {"mime_type": None},
            {"expires_after": {"anchor": "created_at", "seconds": 3599}},
            {"expires_after": {"seconds": 3600}},
        ],
    )
    def test_invalid(self, owner: httpx.Client, fields: dict[str, Any]):
        asked = {"filename": "a", "purpose": "batch", "bytes": 1, "mime_type": "text/plain"}
        response = owner.post("/v1/uploads", json={**asked, **fields})
        assert response.status_code == 400, response.text
        (name,) = fields
        assert response.json()["error"]["param"].startswith(name)

    def test_too_large(self, owner: httpx.Client):
        asked = {"filename": "a", "purpose": "batch", "mime_type": "text/plain"}
        response = owner.post("/v1/uploads", json={**asked, "bytes": FILE_LIMIT + 1})
        assert code(response) == (413, "payload_too_large")

    def test_upload_of_another_account(self, small: Server, owner: httpx.Client):
        upload = begin(owner, len(ONE))
        part = add(owner, upload, ONE)
        with small.account("other") as stranger:
            path = f"/v1/uploads/{upload}"
            for response in (
                stranger.get(path),
                stranger.post(f"{path}/parts", files={"data": ONE}),
                complete(stranger, upload, part),
                stranger.post(f"{path}/cancel"),
            ):
                assert code(response) == (404, "upload_not_found")

    def test_quota_of_sessions(self, small: Server, owner: Any):
        with small.client(small.operator_key) as operator:
            path = f"/v1/accounts/{owner.account_id}"
            operator.patch(path, json={"quotas": {"upload_sessions": 1}}).raise_for_status()
        upload = begin(owner)
        asked = {"filename": "a", "purpose": "batch", "bytes": 1, "mime_type": "text/plain"}
        assert code(owner.post("/v1/uploads", json=asked)) == (429, "quota_exceeded")
        owner.post(f"/v1/uploads/{upload}/cancel").raise_for_status()
        begin(owner)

    def test_declared_bytes_are_reserved(self, small: Server, owner: Any):
        begin(owner, 1000)
        used = owner.get("/v1/quotas").json()["quotas"]["storage_bytes"]["used"]
        assert used == 1000


class TestFullDisk:
    @pytest.mark.fault("c2")
    def test_nothing_is_left_and_it_is_said(self, tmp_path: Path):
        limits = {"STOKER_DISK_RESERVE_MIB": "0", **WITHOUT_MODELS}
        with (
            small_disk(tmp_path / "disk", 48) as disk,
            running(disk / "data", **limits) as server,
            server.account() as client,
        ):
            files = {"file": ("a", bytes(64 * MIB))}
            response = client.post("/v1/files", data={"purpose": "batch"}, files=files)
            assert code(response) == (503, "insufficient_storage")
            upload = begin(client, 30 * MIB)
            parts = [add(client, upload, bytes(15 * MIB)) for _ in range(2)]
            assert code(complete(client, upload, *parts)) == (503, "insufficient_storage")
            assert stored(server) == {f"file-parts/{part}" for part in parts}
            assert client.get("/v1/files").json()["data"] == []

    def test_without_an_announced_length(self, tmp_path: Path):
        limits = {"STOKER_DISK_RESERVE_MIB": "0", **WITHOUT_MODELS}
        with (
            small_disk(tmp_path / "disk", 48) as disk,
            running(disk / "data", **limits) as server,
            server.account() as client,
        ):

            def body() -> Iterator[bytes]:
                yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
                for _ in range(64):
                    yield bytes(MIB)

            kind = {"content-type": "multipart/form-data; boundary=x"}
            response = client.post("/v1/files", content=body(), headers=kind)
            assert code(response) == (503, "insufficient_storage")
            assert stored(server) == set()


class TestKilled:
    def test_no_half_file(self, tmp_path: Path):
        """A killed server leaves no file and, after its restart, no bytes."""
        with running(tmp_path / "data", **WITHOUT_MODELS) as server:
            with server.account() as client:
                key = client.headers["authorization"]
                parts = [b"--x\r\nContent-Disposition: form-data; "]

                def body() -> Any:
                    yield parts[0] + b'name="file"; filename="a"\r\n\r\n'
                    yield bytes(2 * MIB)
                    deadline = time.monotonic() + 30
                    while not stored(server):
                        assert time.monotonic() < deadline
                        time.sleep(0.01)
                    server.kill()
                    yield bytes(MIB)

                with pytest.raises(httpx.TransportError):
                    client.post(
                        "/v1/files",
                        content=body(),
                        headers={"content-type": "multipart/form-data; boundary=x"},
                    )
                assert [name.partition("/")[0] for name in stored(server)] == ["unfinished"]
            server.restart()
            assert stored(server) == set()
            with server.client(key.removeprefix("Bearer ")) as client:
                assert client.get("/v1/files").json()["data"] == []

    async def test_bytes_without_a_row_go_once_they_are_old(
        self, platform: Platform, small: Server
    ) -> None:
        before = stored(small)
        writer = platform.blobs.writer()
        writer.write(b"its server was killed")
        part = f"{service.PART_BLOBS}part_0{'0' * 25}"
        await platform.blobs.put(part, b"its server was killed, too", "")
        await service.sweep_strays(platform.database, platform.blobs, db.now())
        assert len(stored(small) - before) == 2, "they may be on their way"
        later = db.now() + service.UNFINISHED_AFTER
        await service.sweep_strays(platform.database, platform.blobs, later)
        assert stored(small) <= before
        await writer.close()
