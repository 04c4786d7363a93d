"""Imports from a hub into a bucket. Parts that arrive in any order are still compared."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import obstore
import pytest
from obstore.store import S3Store

from tests.buckets.conftest import TIMEOUT_S, keys
from tests.buckets.support import ARTIFACTS
from tests.support.app import App, serving
from tests.support.bucket import Proxy
from tools.stand_ins.model_hub import ModelHub, model_hub

REPO = "tests/tiny"
README = random.Random(7).randbytes(1_300_000).hex().encode()
"""Three parts, which are fetched at the same time."""


@pytest.fixture(scope="module")
def hub(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelHub]:
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    shutil.copytree(bert, folder)
    (folder / "README.md").write_bytes(README)
    with model_hub() as hub:
        hub.put(REPO, folder)
        yield hub


@pytest.fixture(scope="module")
async def app(proxy: Proxy, url: str, data_dir: Path, hub: ModelHub) -> AsyncIterator[App]:
    settings: dict[str, Any] = {
        "blob_url": url,
        "blob_timeout_s": TIMEOUT_S,
        "upload_part_mib": 1,
        "hub_endpoint": hub.endpoint,
        "hub_private_hosts": ["localhost"],
    }
    async with serving(data_dir, **settings) as app:
        yield app


async def imported(client: httpx.AsyncClient) -> dict[str, Any]:
    made = (await client.post(ARTIFACTS, json={"display_name": "tiny"})).raise_for_status()
    path = f"{ARTIFACTS}/{made.json()['id']}"
    (await client.post(f"{path}/imports", json={"repo_id": REPO})).raise_for_status()
    async with asyncio.timeout(120):
        while True:
            artifact = (await client.get(path)).raise_for_status().json()
            if artifact["import"]["status"] in ("completed", "failed"):
                return artifact
            await asyncio.sleep(0.05)


async def test_import(client: httpx.AsyncClient, behind: S3Store) -> None:
    artifact = await imported(client)
    assert artifact["import"]["status"] == "completed", artifact
    assert artifact["status"] == "ready"
    card = await client.get(f"{ARTIFACTS}/{artifact['id']}/card")
    assert card.raise_for_status().content == README[: 1 << 20]
    # In the order of their numbers, the parts make up the file.
    mine = [key for key in keys(behind, f"artifacts/{artifact['id']}") if "-" in key]
    files: dict[str, list[tuple[int, bytes]]] = {}
    for key in mine:
        folder, _, name = key.rpartition("/")
        part = bytes(obstore.get(behind, key).bytes())
        files.setdefault(folder, []).append((int(name.partition("-")[0]), part))
    assert README in [b"".join(part for _, part in sorted(parts)) for parts in files.values()]


async def test_goes_on_when_the_store_is_back(client: httpx.AsyncClient, proxy: Proxy) -> None:
    """The bucket fails for longer than the server retries. The job is postponed and then
    completes.
    """
    proxy.fail(503, times=40, within="artifacts")
    artifact = await imported(client)
    assert artifact["import"]["status"] == "completed", artifact
    assert artifact["status"] == "ready"
