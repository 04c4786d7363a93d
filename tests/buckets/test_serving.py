"""From a push to a call, with the bytes of artifacts in a bucket."""

import hashlib
import random
import shutil
from pathlib import Path

import httpx
import numpy as np
import obstore
from obstore.store import S3Store
from transformers import pipeline

from stoker.registry.deployments.folders import ModelFolders
from stoker.runtime.specification import DeploymentSpec
from tests.adapters.support import made
from tests.buckets.conftest import keys
from tests.buckets.support import MIB, Uploading, code, eventually, pushed
from tests.support.app import App, serving
from tests.support.bucket import CUT, Proxy

TEXT = "Ada Lovelace lived in London"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_push_deploy_call(
    app: App, client: httpx.AsyncClient, bert: Path, behind: S3Store, data_dir: Path
) -> None:
    """The model answers as transformers does, from a copy that was fetched from the bucket."""
    upload = await pushed(client, bert)
    stored = keys(behind, upload.prefix)
    # One object per part and one list of the parts. This machine stores nothing.
    assert len(stored) == len([*bert.iterdir()]) + 1
    assert not (data_dir / "blobs").exists()
    assert not [*(data_dir / "spool").iterdir()]
    body = {"model": "tagger", "artifact_id": upload.artifact_id}
    (await client.post("/v1/deployments", json=body)).raise_for_status()
    request = {"model": "tagger", "inputs": TEXT}
    answer = await client.post("/v1/classifications/token", json=request)
    entities = answer.raise_for_status().json()
    expected = pipeline("token-classification", str(bert))(TEXT)
    assert [entity["entity"] for entity in entities] == [entity["entity"] for entity in expected]
    scores = [[entity["score"] for entity in some] for some in (entities, expected)]
    np.testing.assert_allclose(*scores, atol=1e-4)
    (copy,) = (data_dir / "models").iterdir()
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        path.name: path.read_bytes() for path in bert.iterdir()
    }
    assert not any(path.is_symlink() for path in copy.iterdir())


async def test_parts_in_any_order(client: httpx.AsyncClient, behind: S3Store, bert: Path) -> None:
    """A part that is sent again with other bytes replaces the old one, which is deleted in the
    end.
    """
    content = random.Random(1).randbytes(MIB + 17).hex().encode()
    upload = await Uploading.open(client)
    await upload.put_folder(bert)
    parts = [content[start : start + MIB] for start in range(0, len(content), MIB)]
    wrong = b"w" * MIB
    for number, part in ((3, parts[2]), (1, wrong), (2, parts[1]), (1, parts[0])):
        (await upload.put_part("notes.txt", number, part)).raise_for_status()
    head = await client.head(f"{upload.url}/files/notes.txt")
    assert head.headers["upload-offset"] == str(len(content))

    def there() -> list[str]:
        return [key.rpartition("-")[2] for key in keys(behind, upload.prefix)]

    # The old bytes stay while another server may be about to record them again.
    assert sha256(wrong) in there()
    assert (await upload.complete())["status"] == "ready"
    await eventually(lambda: sha256(wrong) not in there())
    assert {*map(sha256, parts)} <= {*there()}
    assert len(there()) == len([*bert.iterdir()]) + len(parts) + 1
    for number, part in enumerate(parts, 1):
        (key,) = (key for key in keys(behind, upload.prefix) if f"/{number}-{sha256(part)}" in key)
        assert bytes(obstore.get(behind, key).bytes()) == part


async def test_refused_files_go_with_their_session(
    client: httpx.AsyncClient, behind: S3Store
) -> None:
    upload = await Uploading.open(client)
    (await upload.put("config.json", b"{not json")).raise_for_status()
    artifact = await upload.complete()
    assert (artifact["status"], artifact["failure"]["code"]) == ("failed", "bad_json")
    (await client.delete(upload.url)).raise_for_status()
    await eventually(lambda: keys(behind, upload.prefix) == [])


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
    """A part with a wrong digest does not reach the bucket."""
    upload = await Uploading.open(client)
    wrong = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
    answer = await upload.put("config.json/parts/1", b"{}", **{"content-digest": wrong})
    assert code(answer) == (400, "digest_mismatch")
    assert not [path for _, path in proxy.seen if upload.prefix in path]
    assert keys(behind, upload.prefix) == []


async def test_a_model_that_went_is_to_host_again(
    app: App, client: httpx.AsyncClient, bert: Path, proxy: Proxy
) -> None:
    upload = await pushed(client, bert)
    folders = app.parts.get(ModelFolders)
    spec = DeploymentSpec(
        id="dep_x",
        account_id="acct_x",
        model="x",
        pipeline="token-classification",
        source=upload.upload_id,
    )
    folder = await folders.folder(spec)
    proxy.seen.clear()
    # The copy exists and is not fetched again.
    assert await folders.folder(spec) == folder
    assert not [path for _, path in proxy.seen if upload.prefix in path]
    await folders.drop(upload.upload_id)
    assert not folder.exists()
    again = await folders.folder(spec)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in bert.iterdir()
    }


async def test_adapters(
    client: httpx.AsyncClient, bert: Path, data_dir: Path, tmp_path: Path
) -> None:
    """One adapter shares its base's replicas, which read copies of it. The other has separate
    merged weights.
    """
    options = {"target_modules": ["query", "value"]}
    made(tmp_path / "shared", bert, **options)
    adapted = made(tmp_path / "alone", bert, use_dora=True, seed=2, **options)
    deployed: dict[str, str] = {}
    for name, folder, fields in (
        ("base", bert, {}),
        ("shared", tmp_path / "shared", {"adapter_of": "base"}),
        ("alone", tmp_path / "alone", {"adapter_of": "base"}),
    ):
        upload = await pushed(client, folder)
        body = {"model": name, "artifact_id": upload.artifact_id, **fields}
        answer = await client.post("/v1/deployments", json=body)
        assert answer.status_code == 201, answer.text
        deployed[name] = answer.json()["id"]
    placed = data_dir / "adapters" / deployed["base"] / deployed["shared"]
    for path in placed.iterdir():
        assert path.read_bytes() == (tmp_path / "shared" / path.name).read_bytes()
    assert {path.name for path in placed.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    for path in bert.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "merged")
    expected = pipeline("token-classification", str(tmp_path / "merged"))(TEXT)
    request = {"model": "alone", "inputs": TEXT}
    answer = await client.post("/v1/classifications/token", json=request)
    entities = answer.raise_for_status().json()
    assert [entity["entity"] for entity in entities] == [entity["entity"] for entity in expected]
    scores = [[entity["score"] for entity in some] for some in (entities, expected)]
    np.testing.assert_allclose(*scores, atol=1e-3)


async def test_a_server_starts_while_the_store_is_away(
    proxy: Proxy, url: str, tmp_path: Path
) -> None:
    proxy.fail(CUT)
    settings = {"blob_url": url, "blob_timeout_s": 1}
    async with serving(tmp_path / "data", **settings) as app, await app.account() as client:
        upload = await Uploading.open(client)
        assert code(await upload.put("config.json", b"{}")) == (503, "store_unavailable")
        proxy.heal()
        (await upload.put("config.json", b"{}")).raise_for_status()
