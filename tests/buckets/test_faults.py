"""A bucket fails briefly or for long during uploads and loads."""

import random
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from obstore.store import S3Store

from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts import upkeep
from stoker.store.db import Database
from tests.buckets.conftest import TIMEOUT_S, keys
from tests.buckets.support import MIB, Uploading, code, eventually, pushed
from tests.support.app import App, serving
from tests.support.bucket import CUT, Proxy

CONTENT = random.Random(3).randbytes(MIB)


@pytest.mark.fault("g1")
@pytest.mark.parametrize("fault", [503, 500, CUT])
async def test_a_short_fault_is_not_noticed(
    client: httpx.AsyncClient, proxy: Proxy, fault: int
) -> None:
    upload = await Uploading.open(client)
    proxy.fail(fault, times=2, within=upload.prefix)
    answer = await upload.put_part("model.safetensors", 1, CONTENT)
    assert answer.status_code == 200, answer.text
    methods = [method for method, path in proxy.seen if upload.prefix in path]
    assert methods == ["PUT"] * 3


@pytest.mark.fault("g2")
@pytest.mark.parametrize("fault", [503, CUT])
async def test_a_part_that_cannot_be_kept_is_not_acknowledged(
    client: httpx.AsyncClient, proxy: Proxy, fault: int, behind: S3Store, data_dir: Path
) -> None:
    upload = await Uploading.open(client)
    (await upload.put_part("a.txt", 1, CONTENT)).raise_for_status()
    proxy.fail(fault)
    refused = await upload.put_part("a.txt", 2, CONTENT)
    assert code(refused) == (503, "store_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    # No acknowledged part is lost, and no other part counts.
    head = await client.head(f"{upload.url}/files/a.txt")
    assert head.headers["upload-offset"] == str(MIB)
    assert not [*(data_dir / "spool").iterdir()]
    proxy.heal()
    (await upload.put_part("a.txt", 2, CONTENT[:5])).raise_for_status()
    head = await client.head(f"{upload.url}/files/a.txt")
    assert head.headers["upload-offset"] == str(MIB + 5)
    assert len(keys(behind, upload.prefix)) == 2


@pytest.mark.fault("g2")
async def test_a_part_that_is_sent_anew_stays_as_it_was(
    client: httpx.AsyncClient, proxy: Proxy, behind: S3Store
) -> None:
    """The new bytes do not reach the bucket, so the acknowledged ones still count."""
    upload = await Uploading.open(client)
    (await upload.put_part("a.txt", 1, CONTENT)).raise_for_status()
    before = keys(behind)
    proxy.fail(503)
    assert code(await upload.put_part("a.txt", 1, bytes(MIB))) == (503, "store_unavailable")
    proxy.heal()
    head = await client.head(f"{upload.url}/files/a.txt")
    assert head.headers["upload-offset"] == str(MIB)
    assert keys(behind) == before


@pytest.mark.fault("g2")
async def test_completing_is_tried_again(
    client: httpx.AsyncClient, proxy: Proxy, bert: Path
) -> None:
    """If any step of a completion fails, the session is unchanged, and its files are not
    rejected.
    """
    upload = await Uploading.open(client)
    await upload.put_folder(bert)
    for method in ("PUT", "GET"):
        proxy.fail(503, method=method)
        answer = await client.post(f"{upload.url}/complete")
        assert code(answer) == (503, "store_unavailable")
        proxy.heal()
    assert (await upload.complete())["status"] == "ready"


@pytest.mark.fault("g2")
async def test_a_model_is_loaded_when_the_store_is_back(
    app: App, client: httpx.AsyncClient, proxy: Proxy, bert: Path
) -> None:
    upload = await pushed(client, bert)
    proxy.fail(CUT)
    body = {"model": "tagger", "artifact_id": upload.artifact_id}
    deployed = (await client.post("/v1/deployments", json=body)).raise_for_status().json()
    request = {"model": "tagger", "inputs": "Ada"}
    waiting = {"prefer": "wait=30"}
    answer = await client.post("/v1/classifications/token", json=request, headers=waiting)
    assert code(answer) == (503, "model_loading")
    assert "object store" in answer.json()["error"]["message"]
    proxy.heal()
    (await client.post(f"/v1/deployments/{deployed['id']}/start")).raise_for_status()
    waiting = {"prefer": "wait=120"}
    answer = await client.post("/v1/classifications/token", json=request, headers=waiting)
    assert answer.status_code == 200, answer.text


@pytest.mark.fault("g3")
async def test_damaged_bytes_are_never_loaded(
    app: App, client: httpx.AsyncClient, behind: S3Store, bert: Path, data_dir: Path
) -> None:
    """Bytes from the bucket are compared with the uploaded ones, and damaged bytes are never
    loaded.
    """
    upload = await pushed(client, bert)
    for key in keys(behind, upload.prefix):
        if "/1-" in key:
            size = len(behind.get(key).bytes())
            behind.put(key, bytes(size))
    body = {"model": "tagger", "artifact_id": upload.artifact_id}
    (await client.post("/v1/deployments", json=body)).raise_for_status()
    request = {"model": "tagger", "inputs": "Ada"}
    answer = await client.post("/v1/classifications/token", json=request)
    assert answer.status_code == 503
    assert not (data_dir / "models" / upload.upload_id).exists()


class TestSweeping:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes blobs count as old immediately. The margin covers the store's clock, which has
        whole seconds.
        """
        monkeypatch.setattr(upkeep, "STRAY_AFTER", timedelta(seconds=-60))

    async def test_what_no_row_stands_for_goes(
        self, app: App, client: httpx.AsyncClient, behind: S3Store, bert: Path
    ) -> None:
        platform = app.platform
        ready = await pushed(client, bert)
        is_open = await Uploading.open(client, ready.artifact_id)
        (await is_open.put_part("a.txt", 1, CONTENT)).raise_for_status()
        known = keys(behind, ready.prefix) + keys(behind, is_open.prefix)
        still = f"{is_open.prefix}/1/7-{'ab' * 32}"
        for key in (f"{ready.prefix}/1/9-{'cd' * 32}", "artifacts/art_x/upl_x/1/1-00", still):
            behind.put(key, b"stray")
        await upkeep.sweep_strays(platform.database, platform.blobs)
        # A blob of an open upload stays, because another server may be about to record it.
        remaining = {key for key in keys(behind) if "art_x" in key or ready.artifact_id in key}
        assert remaining == {*known, still}

    async def test_wrong_database_costs_nothing(
        self, app: App, behind: S3Store, tmp_path: Path
    ) -> None:
        behind.put("artifacts/art_y/upl_y/1/1-00", b"somebody's")
        other = Database(f"sqlite+aiosqlite:///{tmp_path}/other.db")
        await other.migrate()
        await upkeep.sweep_strays(other, app.platform.blobs)
        await other.close()
        assert keys(behind, "artifacts/art_y") == ["artifacts/art_y/upl_y/1/1-00"]

    @pytest.mark.fault("g2")
    async def test_what_could_not_be_deleted_goes_later(
        self, app: App, client: httpx.AsyncClient, behind: S3Store, proxy: Proxy
    ) -> None:
        platform = app.platform
        upload = await Uploading.open(client)
        (await upload.put_part("a.txt", 1, CONTENT)).raise_for_status()
        proxy.fail(503)
        # The deletion is acknowledged, because the rows are deleted.
        (await client.delete(upload.url)).raise_for_status()
        await eventually(lambda: not artifacts._clearing)
        assert code(await upload.put_part("a.txt", 2, CONTENT)) == (409, "upload_closed")
        assert len(keys(behind, upload.prefix)) == 1
        proxy.heal()
        await upkeep.sweep_strays(platform.database, platform.blobs)
        assert keys(behind, upload.prefix) == []


@pytest.fixture
async def patient(proxy: Proxy, url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a server with a timeout that is longer than temporary faults last on a busy
    machine.
    """
    settings = {"blob_url": url, "blob_timeout_s": 4 * TIMEOUT_S, "upload_part_mib": 1}
    async with serving(tmp_path / "data", **settings) as app, await app.account() as client:
        yield client


@pytest.mark.fault("g1")
async def test_a_request_that_hangs_is_made_again(patient: httpx.AsyncClient, proxy: Proxy) -> None:
    """A hanging request is retried, and the first one harms nothing when it arrives late."""
    upload = await Uploading.open(patient)
    go_on, hung = threading.Event(), threading.Event()

    def fault(_method: str, path: str) -> int | None:
        if upload.prefix in path and not hung.is_set():
            hung.set()
            go_on.wait(60)
        return None

    proxy.fault = fault
    try:
        answer = await upload.put_part("a.txt", 1, CONTENT)
        assert answer.status_code == 200, answer.text
        # The bytes sent last count, even if older ones arrive later.
        (await upload.put_part("a.txt", 1, CONTENT[:100])).raise_for_status()
    finally:
        go_on.set()
    head = await patient.head(f"{upload.url}/files/a.txt")
    assert head.headers["upload-offset"] == "100"
