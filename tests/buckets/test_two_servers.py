"""Two server processes share one database and one bucket. An upload that begins at one continues at
the other.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from obstore.store import S3Store

from tests.artifacts.support import MIB, Uploading, digest, error
from tests.buckets.conftest import keys
from tests.support import postgres
from tests.support.bucket import Proxy
from tests.support.server import WITHOUT_MODELS, Server, running

CONTENT = random.Random(5).randbytes(5 * MIB // 2 + 1).hex().encode()
"""Text, because inspection requires text in a file of that name."""


@pytest.fixture(scope="module")
def servers(
    proxy: Proxy, url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    root = tmp_path_factory.mktemp("two")
    with postgres.running() as database:
        env = {
            "STOKER_DATABASE_URL": database,
            "STOKER_BLOB_URL": url,
            "STOKER_UPLOAD_PART_MIB": "1",
            "STOKER_JOB_LEASE_S": "5",
            **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
            **WITHOUT_MODELS,
        }
        with running(root / "a", **env) as first, running(root / "b", **env) as other:
            yield first, other


@pytest.fixture(scope="module")
def clients(servers: tuple[Server, Server]) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    first, other = servers
    with first.account() as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
        with other.client(key) as at_other:
            yield client, at_other


@pytest.fixture
def uploads(
    servers: tuple[Server, Server], clients: tuple[httpx.Client, httpx.Client]
) -> tuple[Uploading, Uploading]:
    """Opens an upload at the first server. Returns it as seen through each server."""
    begun = Uploading.open(servers[0], clients[0])
    return begun, replace(begun, server=servers[1], client=clients[1])


@pytest.mark.fault("f2")
def test_an_upload_goes_on_at_another_server(
    uploads: tuple[Uploading, Uploading], bert: Path
) -> None:
    upload, beside = uploads
    files = sorted(bert.iterdir())
    for number, path in enumerate(files):
        where = uploads[number % 2]
        where.put(path.name, path.read_bytes()).raise_for_status()
    parts = [CONTENT[start : start + MIB] for start in range(0, len(CONTENT), MIB)]
    for number, part in reversed([*enumerate(parts, 1)]):
        where = uploads[number % 2]
        where.put_part("README.md", number, part, **digest(part)).raise_for_status()
    # Each server knows the parts that the other received.
    assert upload.offset("README.md") == beside.offset("README.md") == len(CONTENT)
    # A part that is sent again to the other server has the bytes sent last.
    for where, content in ((beside, bytes(MIB)), (upload, parts[1])):
        where.put_part("README.md", 2, content).raise_for_status()
    assert beside.complete().json()["artifact"]["status"] == "ready"
    # The upload is completed once, and both servers report it.
    assert upload.complete().json()["artifact"]["status"] == "ready"
    card = upload.client.get(f"/v1/model-artifacts/{upload.artifact_id}/card")
    assert card.raise_for_status().content == CONTENT[:MIB]
    error(beside.put("more.txt", b"late"), 409, "upload_closed")


@pytest.mark.release
def test_refused_at_one_and_corrected_at_the_other(
    uploads: tuple[Uploading, Uploading], bert: Path, behind: S3Store
) -> None:
    begun, other = uploads
    begun.put_folder(bert)
    right = (bert / "config.json").read_bytes()
    begun.put("config.json", b"{")
    begun.put("stray.json", b"\x80\x02}q\x00.")
    assert begun.complete().json()["artifact"]["status"] == "failed"
    other.put("config.json", right).raise_for_status()
    other.client.delete(f"{other.url}/files/stray.json").raise_for_status()
    assert other.complete().json()["artifact"]["status"] == "ready"
    body = {"model": "corrected", "artifact_id": begun.artifact_id}
    begun.client.post("/v1/deployments", json=body).raise_for_status()
    request = {"model": "corrected", "inputs": "Ada Lovelace lived in London"}
    for upload in uploads:
        upload.client.post("/v1/classifications/token", json=request).raise_for_status()


@pytest.mark.fault("g4")
def test_a_server_that_is_killed_loses_nothing(
    uploads: tuple[Uploading, Uploading], bert: Path, behind: S3Store
) -> None:
    """The other server continues with all acknowledged parts. A half-received part is lost."""
    upload, beside = uploads
    for path in bert.iterdir():
        upload.put(path.name, path.read_bytes()).raise_for_status()
    upload.put_part("notes.txt", 1, CONTENT[:MIB]).raise_for_status()
    with upload.beginning("notes.txt/parts/2", MIB, CONTENT[MIB : MIB + 5000]):
        upload.server.kill()
    # The part in flight was stored in a file without a name.
    assert not [*(upload.server.data_dir / "spool").iterdir()]
    assert beside.offset("notes.txt") == MIB
    beside.put_part("notes.txt", 2, CONTENT[MIB : MIB + 7]).raise_for_status()
    assert beside.complete().json()["artifact"]["status"] == "ready"
    prefix = f"artifacts/{upload.artifact_id}/{upload.upload_id}"
    assert len(keys(behind, prefix)) == len([*bert.iterdir()]) + 2 + 1
