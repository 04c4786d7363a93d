"""The life of an upload session: opened, filled, completed, superseded, abandoned, expired."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from stoker.base.config import Settings
from stoker.base.errors import ConflictError
from stoker.platform.quotas.service import QuotaService
from stoker.registry.artifacts import completion, service, upkeep
from stoker.registry.artifacts.schemas import ArtifactCreate
from stoker.registry.deployments import versions
from stoker.store.blobs import Folder
from stoker.store.db import Database
from stoker.store.tables.artifacts import Artifact, Upload, UploadFile
from stoker.store.tables.deployments import Deployment
from tests.artifacts.support import (
    ACCOUNT,
    ARTIFACTS,
    MIB,
    Uploading,
    data,
    deploy,
    error,
    eventually,
    new_artifact,
)
from tests.support.server import Server


class TestStart:
    def test_opened(self, client: httpx.Client) -> None:
        artifact_id = new_artifact(client)
        response = client.post(f"{ARTIFACTS}/{artifact_id}/uploads")
        assert response.status_code == 201
        opened = response.json()
        assert opened.keys() == {"upload_id", "message", "artifact", "part_size"}
        assert opened["part_size"] == 16 * MIB
        assert opened["artifact"]["status"] == "uploading"
        assert opened["artifact"]["upload_id"] == opened["upload_id"]

    def test_idempotency_key(self, client: httpx.Client) -> None:
        url = f"{ARTIFACTS}/{new_artifact(client)}/uploads"
        first, again = (client.post(url, headers={"idempotency-key": "a"}) for _ in range(2))
        assert first.json() == again.json()
        assert client.get(f"{url}/{first.json()['upload_id']}").json()["status"] == "open"

    def test_in_use(self, ready: Uploading) -> None:
        deploy(ready.client, ready.artifact_id, "tagger-in-use")
        response = ready.client.post(f"{ARTIFACTS}/{ready.artifact_id}/uploads")
        details = error(response, 409, "artifact_in_use")
        assert "tagger-in-use" in details["message"]
        assert ready.artifact()["status"] == "ready"

    def test_supersedes(self, server: Server, client: httpx.Client) -> None:
        old = Uploading.open(server, client)
        old.put("config.json", b"{}").raise_for_status()
        new = Uploading.open(server, client, old.artifact_id)
        assert eventually(lambda: not old.folder.exists())
        for answer in (
            client.get(old.url),
            old.put("a.json", b"{}"),
            old.put_part("a.json", 1, b"{}"),
            old.complete(),
            client.delete(old.url),
        ):
            assert "superseded" in error(answer, 409, "upload_closed")["message"]
        assert old.head("config.json").status_code == 409
        assert new.get()["files"] == []
        assert new.artifact()["upload_id"] == new.upload_id


class TestGet:
    def test_files(self, server: Server, client: httpx.Client) -> None:
        upload = Uploading.open(server, client)
        upload.put("config.json", b"{}").raise_for_status()
        session = upload.get()
        created, expires = (
            datetime.fromisoformat(session.pop(f"{n}_at")) for n in ("created", "expires")
        )
        assert expires - created == timedelta(days=7)
        sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        assert session == {
            "upload_id": upload.upload_id,
            "object": "upload",
            "artifact_id": upload.artifact_id,
            "status": "open",
            "part_size": 16 * MIB,
            "files": [
                {
                    "path": "config.json",
                    "size": 2,
                    "received": 2,
                    "complete": True,
                    "sha256": sha256,
                    "parts": [{"number": 1, "size": 2, "sha256": sha256}],
                }
            ],
        }

    def test_unknown(self, server: Server, client: httpx.Client) -> None:
        upload = Uploading.open(server, client)
        other = new_artifact(client)
        for url in (
            f"{ARTIFACTS}/{upload.artifact_id}/uploads/upl_0",
            f"{ARTIFACTS}/{other}/uploads/{upload.upload_id}",
        ):
            error(client.get(url), 404, "upload_not_found")


class TestComplete:
    def test_ready(self, server: Server, client: httpx.Client, bert: Path) -> None:
        upload = Uploading.open(server, client)
        upload.put_folder(bert)
        answer = upload.complete()
        assert answer.status_code == 200
        artifact = answer.json()["artifact"]
        size = sum(path.stat().st_size for path in bert.iterdir())
        assert artifact["status"] == "ready"
        assert artifact["pipeline"] == "token-classification"
        assert (artifact["size_bytes"], artifact["size_gb"]) == (size, round(size / 1e9, 6))
        assert artifact["failure"] is None
        assert artifact["upload_id"] is None
        inspection = artifact["inspection"]
        assert inspection.keys() == {
            "architecture",
            "model_type",
            "parameters",
            "weight_bytes",
            "memory_bytes",
            "dtype",
            "engines",
            "warnings",
            "adapter",
        }
        assert inspection["architecture"] == "BertForTokenClassification"
        assert inspection["memory_bytes"] > inspection["weight_bytes"] > 0
        assert upload.stored() == [path.read_bytes() for path in sorted(bert.iterdir())]
        assert upload.get()["status"] == "ready"

    def test_again(self, ready: Uploading) -> None:
        first, second = ready.complete(), ready.complete()
        assert first.status_code == 200
        assert first.json() == second.json()
        assert first.json()["artifact"] == ready.artifact()
        error(ready.put("more.json", b"{}"), 409, "upload_closed")
        error(ready.client.delete(ready.url), 409, "upload_closed")
        assert ready.artifact()["status"] == "ready"

    def test_two_at_once(self, server: Server, client: httpx.Client, bert: Path) -> None:
        upload = Uploading.open(server, client)
        upload.put_folder(bert)
        with ThreadPoolExecutor(6) as pool:
            answers = [
                future.result() for future in [pool.submit(upload.complete) for _ in range(6)]
            ]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert answers[0].json()["artifact"]["status"] == "ready"

    def test_no_files(self, server: Server, client: httpx.Client) -> None:
        upload = Uploading.open(server, client)
        error(upload.complete(), 409, "upload_incomplete")
        assert upload.artifact()["status"] == "uploading"

    def test_gap(self, upload: Uploading) -> None:
        upload.put("config.json", b"{}").raise_for_status()
        upload.put_part("w.safetensors", 1, data(MIB)).raise_for_status()
        upload.put_part("w.safetensors", 3, data(7)).raise_for_status()
        details = error(upload.complete(), 409, "upload_incomplete")
        assert details["param"] == "w.safetensors"
        assert "part 2 is missing" in details["message"]
        assert upload.get()["status"] == "open"

    def test_short_of_the_declared_total(self, upload: Uploading) -> None:
        upload.put_part(
            "w.safetensors", 1, data(MIB), content_range=f"bytes 0-{MIB - 1}/{MIB + 5}"
        ).raise_for_status()
        assert (
            f"{MIB} of {MIB + 5}" in error(upload.complete(), 409, "upload_incomplete")["message"]
        )


class TestRefusedFiles:
    @pytest.mark.case(1, 2)
    def test_pickle_by_another_name(self, server: Server, client: httpx.Client, bert: Path) -> None:
        upload = Uploading.open(server, client)
        upload.put_folder(bert)
        upload.put("model.safetensors", b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s." * 40)
        answer = upload.complete()
        assert answer.status_code == 200
        artifact = answer.json()["artifact"]
        assert artifact["status"] == "failed"
        assert artifact["failure"]["code"] == "pickle"
        assert artifact["failure"]["message"] in answer.json()["message"]
        assert upload.complete().json() == answer.json()
        assert client.delete(upload.url).status_code == 200
        assert eventually(lambda: not upload.folder.exists())

    def test_pipeline_that_the_files_cannot_serve(
        self, server: Server, client: httpx.Client, bert: Path
    ) -> None:
        artifact_id = new_artifact(client, pipeline="fill-mask")
        upload = Uploading.open(server, client, artifact_id)
        upload.put_folder(bert)
        artifact = upload.complete().json()["artifact"]
        assert artifact["failure"]["code"] == "pipeline_mismatch"

    def test_one_stray_file_is_removed(
        self, server: Server, client: httpx.Client, bert: Path
    ) -> None:
        """A rejected file can be removed, and no other file has to be sent again."""
        upload = Uploading.open(server, client)
        upload.put_folder(bert)
        upload.put("training/args.json", b"\x80\x02}q\x00.")
        assert upload.complete().json()["artifact"]["failure"]["code"] == "pickle"
        before = upload.stored()
        stray = f"{upload.url}/files/training/args.json"
        deleted = client.delete(stray).raise_for_status().json()
        assert deleted["object"] == "upload_file.deleted"
        error(client.delete(stray), 404, "file_not_found")
        assert upload.artifact()["status"] == "uploading"
        assert upload.artifact()["failure"] is None
        assert upload.complete().json()["artifact"]["status"] == "ready"
        assert len(upload.stored()) == len(before) - 1
        error(client.delete(f"{upload.url}/files/config.json"), 409, "upload_closed")

    def test_one_file_is_corrected(self, server: Server, client: httpx.Client, bert: Path) -> None:
        upload = Uploading.open(server, client)
        upload.put_folder(bert)
        right = (bert / "config.json").read_bytes()
        upload.put("config.json", b"{")
        for _ in range(2):
            artifact = upload.complete().json()["artifact"]
            assert (artifact["status"], artifact["failure"]["code"]) == ("failed", "bad_json")
            assert artifact["upload_id"] == upload.upload_id
        upload.put("config.json", right).raise_for_status()
        assert upload.complete().json()["artifact"]["status"] == "ready"

    def test_new_session_after_failure(
        self, server: Server, client: httpx.Client, bert: Path
    ) -> None:
        failed = Uploading.open(server, client)
        failed.put("config.json", b"{}")
        assert failed.complete().json()["artifact"]["status"] == "failed"
        upload = Uploading.open(server, client, failed.artifact_id)
        assert upload.artifact()["failure"] is None
        error(client.delete(failed.url), 409, "upload_closed")
        upload.put_folder(bert)
        assert upload.complete().json()["artifact"]["status"] == "ready"

    def test_abandoned_after_failure(self, server: Server, client: httpx.Client) -> None:
        upload = Uploading.open(server, client)
        upload.put("config.json", b"{}")
        assert upload.complete().json()["artifact"]["status"] == "failed"
        assert client.delete(upload.url).status_code == 200
        artifact = upload.artifact()
        assert (artifact["status"], artifact["failure"]) == ("created", None)


class TestLiveFiles:
    """An artifact keeps its files until better ones are ready."""

    def test_replaced_when_ready(self, ready: Uploading, bert: Path) -> None:
        new = Uploading.open(ready.server, ready.client, ready.artifact_id)
        new.put_folder(bert)
        new.put("README.md", b"# Better\n")
        assert len(ready.stored()) == 4
        before = ready.artifact()
        assert (before["status"], before["inspection"] is None) == ("uploading", False)
        artifact = new.complete().json()["artifact"]
        assert artifact["status"] == "ready"
        assert artifact["size_bytes"] == before["size_bytes"] + len(b"# Better\n")
        assert eventually(lambda: not ready.folder.exists())
        assert len(new.stored()) == 5
        error(ready.complete(), 409, "upload_closed")

    def test_kept_when_the_new_ones_are_refused(self, ready: Uploading) -> None:
        before = ready.artifact()
        new = Uploading.open(ready.server, ready.client, ready.artifact_id)
        new.put("config.json", b"not json")
        assert new.complete().json()["artifact"]["status"] == "failed"
        assert len(ready.stored()) == 4
        assert new.client.delete(new.url).status_code == 200
        after = ready.artifact()
        assert before.pop("updated_at") < after.pop("updated_at")
        assert after == before

    def test_kept_when_abandoned(self, ready: Uploading) -> None:
        new = Uploading.open(ready.server, ready.client, ready.artifact_id)
        new.put("config.json", b"{}").raise_for_status()
        assert new.client.delete(new.url).json() == {
            "id": new.upload_id,
            "object": "upload.deleted",
            "deleted": True,
        }
        assert eventually(lambda: not new.folder.exists())
        assert ready.artifact()["status"] == "ready"
        assert len(ready.stored()) == 4
        assert "abandoned" in error(new.client.get(new.url), 409, "upload_closed")["message"]
        error(new.client.delete(new.url), 409, "upload_closed")


# Servers that share a database reopen uploads that none of them inspects.
@pytest.mark.one_machine
class TestIngesting:
    """While files are inspected, the artifact accepts no other operation."""

    @pytest.fixture
    def ingesting(self, server: Server, client: httpx.Client) -> Uploading:
        upload = Uploading.open(server, client)
        upload.put("config.json", b"{}").raise_for_status()
        with sqlite3.connect(server.data_dir / "stoker.db", timeout=30) as connection:
            for table, key in (("artifacts", upload.artifact_id), ("uploads", upload.upload_id)):
                connection.execute(f"UPDATE {table} SET status = 'ingesting' WHERE id = ?", [key])
        connection.close()
        return upload

    def test_refused(self, ingesting: Uploading) -> None:
        client, artifact = ingesting.client, f"{ARTIFACTS}/{ingesting.artifact_id}"
        error(client.post(f"{artifact}/uploads"), 409, "artifact_ingesting")
        error(client.delete(artifact), 409, "artifact_ingesting")
        error(client.delete(ingesting.url), 409, "artifact_ingesting")
        error(ingesting.complete(), 409, "artifact_ingesting")
        error(ingesting.put("a.json", b"{}"), 409, "upload_closed")
        assert ingesting.get()["status"] == "ingesting"


class TestDeployedMeanwhile:
    """Files in use are not replaced. No API leads to this state."""

    async def test_not_completed(self, database: Database, blobs: Folder) -> None:
        artifact, upload = await _session(database, blobs)
        await _deployed(database, artifact)
        with pytest.raises(ConflictError, match="quick-tagger") as raised:
            platform: Any = SimpleNamespace(database=database, blobs=blobs)
            await completion.complete(platform, ACCOUNT, artifact.id, upload.id)
        assert raised.value.code == "artifact_in_use"
        artifact, upload = await _rows(database, artifact, upload)
        assert (artifact.status, upload.status) == ("uploading", "open")


class TestExpiry:
    async def test_expired(self, database: Database, blobs: Folder) -> None:
        artifact, upload = await _session(database, blobs)
        await upkeep.expire_uploads(database, blobs, upload.expires_at - timedelta(seconds=1))
        assert (await _rows(database, artifact, upload))[1].status == "open"
        assert blobs.local_path(_key(upload)).exists()
        await upkeep.expire_uploads(database, blobs, upload.expires_at)
        artifact, upload = await _rows(database, artifact, upload)
        assert (artifact.status, artifact.open_upload_id, upload.status) == (
            "created",
            None,
            "expired",
        )
        assert await blobs.keys("artifacts") == []

    async def test_forgotten(self, database: Database, blobs: Folder) -> None:
        artifact, upload = await _session(database, blobs)
        await upkeep.expire_uploads(database, blobs, upload.expires_at)
        await upkeep.expire_uploads(database, blobs, upload.expires_at + upkeep.CLOSED_KEPT)
        assert (await _rows(database, artifact, upload))[1] is not None
        later = upload.expires_at + upkeep.CLOSED_KEPT + timedelta(seconds=1)
        await upkeep.expire_uploads(database, blobs, later)
        assert (await _rows(database, artifact, upload))[1] is None


class TestRecover:
    async def test_ingesting_is_open_again(self, database: Database, blobs: Folder) -> None:
        artifact, upload = await _session(database, blobs)
        async with database.transaction() as session:
            for row in (artifact, upload):
                (await session.merge(row)).status = "ingesting"
        await upkeep.recover(database, blobs)
        artifact, upload = await _rows(database, artifact, upload)
        assert (artifact.status, upload.status) == ("uploading", "open")

    async def test_orphans_are_removed(self, database: Database, blobs: Folder) -> None:
        _, upload = await _session(database, blobs)
        for key in ("artifacts/art_gone/upl_gone/1", f"{_key(upload)}.3"):
            _write(blobs, key)
        await upkeep.recover(database, blobs)
        assert await blobs.keys("artifacts") == [_key(upload)]
        assert not (blobs.root / "artifacts" / "art_gone").exists()

    async def test_wrong_database_costs_nothing(self, database: Database, blobs: Folder) -> None:
        _write(blobs, "artifacts/art_1/upl_1/1")
        await upkeep.recover(database, blobs)
        assert await blobs.keys("artifacts") == ["artifacts/art_1/upl_1/1"]


def _key(upload: Upload) -> str:
    return f"{service.folder(upload.artifact_id, upload.id)}/1"


def _write(blobs: Folder, key: str) -> None:
    blobs.write(key, b"{}")


async def _session(database: Database, blobs: Folder) -> tuple[Artifact, Upload]:
    """Creates an open session with one file."""
    async with database.transaction() as session:
        settings = Settings(data_dir=blobs.root)
        platform: Any = SimpleNamespace(
            settings=settings, blobs=blobs, quotas=QuotaService(settings)
        )
        create = ArtifactCreate(display_name="x")
        artifact = await service.create(session, platform.quotas, ACCOUNT, create)
        await session.flush()
        artifact, upload = await service.open_upload(session, platform, ACCOUNT, artifact.id)
        session.add(UploadFile(upload_id=upload.id, path="config.json", blob_key=_key(upload)))
    _write(blobs, _key(upload))
    return artifact, upload


async def _deployed(database: Database, artifact: Artifact) -> None:
    """Adds a deployment of an artifact in any state."""
    row = Deployment(
        id="dep_1",
        account_id=ACCOUNT,
        live_version_id="",
        model="quick-tagger",
        pipeline="token-classification",
        artifact_id=artifact.id,
        readiness="cold",
        engine="torch",
        device="cpu",
        dtype="auto",
        min_replicas=0,
        max_replicas=1,
        idle_timeout_s=300,
        max_queue=1,
        desired="stopped",
        created_at=artifact.created_at,
        updated_at=artifact.created_at,
    )
    async with database.transaction() as session:
        session.add(row)
        await session.flush()
        await versions.add(session, row, row, is_live=True)


async def _rows(
    database: Database, artifact: Artifact, upload: Upload
) -> tuple[Artifact | None, Upload | None]:
    async with database.reading() as session:
        return await session.get(Artifact, artifact.id), await session.get(Upload, upload.id)
