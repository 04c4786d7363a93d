"""From a push to a call, where the bytes of artifacts are in a bucket."""

import random
from pathlib import Path

import httpx
import numpy as np
import obstore
from obstore.store import S3Store
from transformers import pipeline

from stoker.runtime.interface import DeploymentSpec
from tests.buckets.conftest import keys
from tests.buckets.support import MIB, Uploading, code, eventually, pushed
from tests.support.app import App
from tests.support.bucket import Proxy

TEXT = "Ada Lovelace lived in London"


async def test_push_deploy_call(
    app: App, client: httpx.AsyncClient, bert: Path, behind: S3Store, data_dir: Path
) -> None:
    """The model answers as transformers does, from a copy that was fetched from the bucket."""
    upload = await pushed(client, bert)
    there = keys(behind, upload.prefix)
    # One object a part, and the list of them; nothing on this machine.
    assert len(there) == len([*bert.iterdir()]) + 1
    assert not (data_dir / "blobs").exists()
    assert not [*(data_dir / "spool").iterdir()]
    body = {"model": "tagger", "artifact_id": upload.artifact_id}
    (await client.post("/v1/deployments", json=body)).raise_for_status()
    asked = {"model": "tagger", "inputs": TEXT}
    answer = await client.post("/v1/classifications/token", json=asked)
    found = answer.raise_for_status().json()
    expected = pipeline("token-classification", str(bert))(TEXT)
    assert [one["entity"] for one in found] == [one["entity"] for one in expected]
    scores = [[one["score"] for one in some] for some in (found, expected)]
    np.testing.assert_allclose(*scores, atol=1e-4)
    (copy,) = (data_dir / "models").iterdir()
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        path.name: path.read_bytes() for path in bert.iterdir()
    }
    assert not any(path.is_symlink() for path in copy.iterdir())


async def test_parts_in_any_order(client: httpx.AsyncClient, behind: S3Store, bert: Path) -> None:
    """Sent anew with other bytes, a part is the new one; the old one leaves nothing."""
    content = random.Random(1).randbytes(2 * MIB + 17)
    upload = await Uploading.open(client)
    parts = [content[start : start + MIB] for start in range(0, len(content), MIB)]
    wrong = bytes(MIB)
    for number, part in ((3, parts[2]), (1, wrong), (2, parts[1]), (1, parts[0])):
        (await upload.put_part("notes.txt", number, part)).raise_for_status()
    head = await client.head(f"{upload.url}/files/notes.txt")
    assert head.headers["upload-offset"] == str(len(content))

    def stored() -> list[bytes]:
        return [bytes(obstore.get(behind, key).bytes()) for key in keys(behind, upload.prefix)]

    # It is deleted in a moment, which nobody waits for.
    await eventually(lambda: wrong not in stored())
    assert b"".join(stored()) == content


async def test_refused_files_go(client: httpx.AsyncClient, behind: S3Store) -> None:
    upload = await Uploading.open(client)
    (await upload.put("config.json", b"{not json")).raise_for_status()
    artifact = await upload.complete()
    assert (artifact["status"], artifact["failure"]["code"]) == ("failed", "bad_json")
    # Before the answer.
    assert keys(behind, upload.prefix) == []


async def test_card_and_deletion(client: httpx.AsyncClient, behind: S3Store, bert: Path) -> None:
    upload = await Uploading.open(client)
    await upload.put_folder(bert)
    (await upload.put("README.md", "# Größe".encode())).raise_for_status()
    assert (await upload.complete())["status"] == "ready"
    path = f"/v1/model-artifacts/{upload.artifact_id}"
    assert "Größe" in (await client.get(f"{path}/card")).raise_for_status().text
    (await client.delete(path)).raise_for_status()
    assert code(await client.get(path)) == (404, "artifact_not_found")
    await eventually(lambda: keys(behind, upload.prefix) == [])


async def test_half_a_part_counts_for_nothing(
    client: httpx.AsyncClient, behind: S3Store, proxy: Proxy
) -> None:
    """Its digest is wrong: nothing of it gets to the bucket."""
    upload = await Uploading.open(client)
    wrong = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
    answer = await upload.put("config.json/parts/1", b"{}", **{"content-digest": wrong})
    assert code(answer) == (400, "digest_mismatch")
    assert not [one for one in proxy.seen if one[0] == "PUT"]
    assert keys(behind, upload.prefix) == []


async def test_a_model_that_went_is_fetched_again(
    app: App, client: httpx.AsyncClient, bert: Path, proxy: Proxy
) -> None:
    upload = await pushed(client, bert)
    folders = app.services.deployments.folders
    spec = DeploymentSpec(
        id="dep_x",
        account_id="acct_x",
        model="x",
        pipeline="token-classification",
        source=upload.upload_id,
    )
    folder = await folders.folder(spec)
    proxy.seen.clear()
    # It is there.
    assert await folders.folder(spec) == folder
    assert proxy.seen == []
    await folders.drop(upload.upload_id)
    assert not folder.exists()
    again = await folders.folder(spec)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in bert.iterdir()
    }
