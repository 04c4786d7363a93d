"""Faults: killed servers, full disks, sessions that end during a transfer."""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.artifacts.support import (
    ARTIFACTS,
    MIB,
    Uploading,
    data,
    error,
    eventually,
    sent_range,
    small_files,
)
from tests.support.disks import small_disk
from tests.support.server import WITHOUT_MODELS, Server, running

SMALL_PARTS = {"STOKER_UPLOAD_PART_MIB": "1", **WITHOUT_MODELS}


@pytest.fixture(scope="module")
def own(mortal_gateway: Server) -> Server:
    return mortal_gateway


class TestKilledServer:
    @pytest.mark.fault("b1")
    def test_upload_goes_on(self, own: Server, bert: Path) -> None:
        weights = _large_weights(bert)
        with own.account() as client:
            upload = Uploading.open(own, client)
            for path in bert.iterdir():
                if path.name != "model.safetensors":
                    upload.put(path.name, path.read_bytes()).raise_for_status()
            with upload.beginning("model.safetensors", len(weights), weights[: 9 * MIB // 2]):
                assert eventually(lambda: upload.offset("model.safetensors") >= 3 * MIB)
                own.kill()
            own.restart()
            offset = upload.offset("model.safetensors")
            assert 3 * MIB <= offset <= 4 * MIB
            headers = sent_range(offset, len(weights), len(weights))
            upload.put("model.safetensors", weights[offset:], **headers).raise_for_status()
            file = upload.file("model.safetensors")
            assert [part["sha256"] for part in file["parts"]] == [
                hashlib.sha256(weights[begin : begin + MIB]).hexdigest()
                for begin in range(0, len(weights), MIB)
            ]
            assert upload.complete().json()["artifact"]["status"] == "ready"
            assert weights in upload.stored()

    # With several servers, the upload is reopened only once the killed server counts as dead.
    # tests/servers/test_starting.py tests that.
    @pytest.mark.one_machine
    @pytest.mark.fault("b2")
    def test_in_the_middle_of_completing(self, own: Server, bert: Path) -> None:
        with own.account() as client:
            upload = Uploading.open(own, client)
            upload.put_folder(bert)
            # Inspection reads text to its end, so this file makes it take a moment.
            upload.put("notes.txt", b"all work and no play\n" * 2_500_000).raise_for_status()
            with upload.beginning("x", 0, b"") as raw:
                raw.answer()
                head = (
                    f"POST {upload.url}/complete HTTP/1.1\r\nhost: test\r\nauthorization: "
                    f"{client.headers['authorization']}\r\ncontent-length: 0\r\n\r\n"
                )
                raw.send(head.encode())
                assert eventually(lambda: upload.get()["status"] != "open")
                own.kill()
            own.restart()
            assert upload.get()["status"] in {"open", "ready"}
            assert upload.complete().json()["artifact"]["status"] == "ready"


class TestClosedUnderATransfer:
    """A session ends while a client sends. The transfer ends, and no bytes stay."""

    ENDINGS: dict[str, Callable[[Uploading], object]] = {
        "superseded": lambda upload: Uploading.open(
            upload.server, upload.client, upload.artifact_id
        ),
        "abandoned": lambda upload: upload.client.delete(upload.url).raise_for_status(),
        "deleted": lambda upload: upload.client.delete(
            f"{ARTIFACTS}/{upload.artifact_id}"
        ).raise_for_status(),
    }

    @pytest.mark.parametrize("ending", ENDINGS)
    @pytest.mark.parametrize("path", ["a.safetensors", "a.safetensors/parts/3"])
    def test_closed(self, upload: Uploading, path: str, ending: str) -> None:
        with upload.beginning(path, MIB, bytes(MIB // 2)) as raw:
            assert eventually(lambda: bool(upload.stored()))
            self.ENDINGS[ending](upload)
            # The client receives the error immediately, not after it has sent the rest.
            answer = raw.answer()
        assert b" 409 " in answer.split(b"\r\n")[0]
        assert b'"upload_closed"' in answer
        assert eventually(lambda: not upload.folder.exists())

    def test_completed_with_a_part_on_its_way(self, server: Server, bert: Path) -> None:
        with server.account() as client:
            upload = Uploading.open(server, client)
            upload.put_folder(bert)
            weights = (bert / "model.safetensors").read_bytes()
            with upload.beginning("model.safetensors/parts/1", len(weights), weights[:-1]) as raw:
                assert eventually(lambda: len(upload.stored()) == 5)
                assert upload.complete().json()["artifact"]["status"] == "ready"
                assert b'"upload_closed"' in raw.answer()
            assert upload.stored() == [path.read_bytes() for path in sorted(bert.iterdir())]


class TestAtOnce:
    """Of conflicting operations at the same moment, exactly one succeeds."""

    ROUNDS = 8

    @pytest.mark.fault("e1")
    def test_two_sessions(self, upload: Uploading) -> None:
        client, url = upload.client, f"{ARTIFACTS}/{upload.artifact_id}/uploads"
        with ThreadPoolExecutor(4) as pool:
            answers = [*pool.map(lambda _: client.post(url), range(8))]
        assert {answer.status_code for answer in answers} == {201}
        ids = {answer.json()["upload_id"] for answer in answers}
        open_ids = {
            upload_id for upload_id in ids if client.get(f"{url}/{upload_id}").status_code == 200
        }
        assert len(ids) == 8
        assert open_ids == {upload.artifact()["upload_id"]}

    @pytest.mark.fault("e3")
    def test_deploy_and_upload(self, ready: Uploading) -> None:
        client, artifact = ready.client, f"{ARTIFACTS}/{ready.artifact_id}"
        body = {"model": "raced", "artifact_id": ready.artifact_id}
        with ThreadPoolExecutor(2) as pool:
            for _ in range(self.ROUNDS):
                deploying = pool.submit(client.post, "/v1/deployments", json=body)
                uploading = pool.submit(client.post, f"{artifact}/uploads")
                deployed, opened = deploying.result(), uploading.result()
                assert sorted([deployed.status_code, opened.status_code]) == [201, 409]
                if deployed.is_success:
                    client.delete(f"/v1/deployments/{deployed.json()['id']}").raise_for_status()
                else:
                    session = opened.json()["upload_id"]
                    client.delete(f"{artifact}/uploads/{session}").raise_for_status()
                assert ready.artifact()["status"] == "ready"
        assert len(ready.stored()) == 4

    @pytest.mark.fault("e2")
    def test_deploy_and_delete(self, server: Server, client: httpx.Client, bert: Path) -> None:
        for number in range(self.ROUNDS // 2):
            upload = Uploading.open(server, client)
            upload.put_folder(bert)
            upload.complete().raise_for_status()
            artifact = f"{ARTIFACTS}/{upload.artifact_id}"
            body = {"model": f"raced-{number}", "artifact_id": upload.artifact_id}
            with ThreadPoolExecutor(2) as pool:
                deploying = pool.submit(client.post, "/v1/deployments", json=body)
                deleted, deployed = client.delete(artifact), deploying.result()
            assert (deployed.status_code, deleted.status_code) in {(201, 409), (404, 200)}
            assert client.get(artifact).status_code == (404 if deleted.is_success else 200)


@pytest.mark.fault("c1")
class TestFullDisk:
    def test_file_size_limit(self, own: Server) -> None:
        """A full disk rejects the upload, which continues once space is free. A removable file size
        limit simulates the disk.
        """
        content = data(6 * MIB)
        with own.account() as client:
            upload = Uploading.open(own, client)
            with small_files(own, 5 * MIB // 2):
                error(upload.put("a.txt", content), 503, "insufficient_storage")
                error(upload.put_part("b.txt", 4, content[:MIB]), 503, "insufficient_storage")
                assert upload.offset("a.txt") == 2 * MIB
                assert upload.file("b.txt")["parts"] == []
            headers = sent_range(2 * MIB, 6 * MIB, 6 * MIB)
            assert upload.put("a.txt", content[2 * MIB :], **headers).json()["complete"]
            assert upload.stored()[0] == content

    def test_small_disk(self, tmp_path: Path) -> None:
        with (
            small_disk(tmp_path / "disk", 24) as disk,
            running(disk / "data", **SMALL_PARTS) as server,
            server.account() as client,
        ):
            upload = Uploading.open(server, client)
            # An announced size that does not fit is rejected entirely. Without an announced size,
            # the server keeps as much as fits.
            opened = client.post(
                f"{ARTIFACTS}/{upload.artifact_id}/uploads", json={"size_bytes": 40 * MIB}
            )
            error(opened, 503, "insufficient_storage")
            content = (bytes(MIB) for _ in range(40))
            error(upload.put("a.txt", content), 503, "insufficient_storage")
            stored_bytes = upload.offset("a.txt")
            assert 10 * MIB < stored_bytes < 24 * MIB
            # The remaining space is reserved for the database, which continues to work.
            assert shutil.disk_usage(disk).free > 0
            assert client.post(ARTIFACTS, json={"display_name": "another"}).status_code == 201
            # The session can be abandoned even on a full disk, which frees space.
            assert client.delete(upload.url).status_code == 200
            assert eventually(lambda: not upload.folder.exists())
            upload = Uploading.open(server, client, upload.artifact_id)
            # Less than before, because the database has grown.
            assert upload.put("a.txt", bytes(stored_bytes - MIB)).status_code == 200


class TestMemory:
    def test_flat(self, server: Server) -> None:
        process = psutil.Process(server.process.pid)  # type: ignore[union-attr]
        with server.account() as client:
            upload = Uploading.open(server, client)
            upload.put("warm.bin", bytes(20 * MIB)).raise_for_status()
            before = process.memory_info().rss
            peak = before

            def chunks() -> Iterator[bytes]:
                nonlocal peak
                block = bytes(MIB)
                for _ in range(300):
                    peak = max(peak, process.memory_info().rss)
                    yield block

            answer = upload.put("zeros.bin", chunks(), content_length=str(300 * MIB))
            assert answer.json()["received"] == 300 * MIB
            assert client.delete(f"{ARTIFACTS}/{upload.artifact_id}").status_code == 200
        assert peak - before < 60 * MIB


def _large_weights(bert: Path) -> bytes:
    """Returns weights of some MiB that fit the tiny model's config, padded by an unused tensor."""
    import torch
    from safetensors.torch import load_file, save

    tensors = load_file(bert / "model.safetensors")
    tensors["padding"] = torch.randn(1_500_000, generator=torch.Generator().manual_seed(0))
    return save(tensors, metadata={"format": "pt"})
