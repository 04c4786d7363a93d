"""The hub's client with a hub that uses TLS, and its handling of odd answers."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.base.errors import CapacityError, HubError
from stoker.registry.hub.client import Hub, HubFile
from tests.media.test_fetch import certificates
from tools.stand_ins.model_hub import ModelHub

REPO = "tests/tiny"


async def content(hub: Hub, commit: str, file: HubFile, start: int, end: int) -> bytes:
    options = {"start": start, "end": end, "token": None}
    async with hub.content(REPO, commit, file, **options) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def test_over_tls(tmp_path: Path) -> None:
    server, client = certificates(tmp_path, "localhost")
    files = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 8192}
    served = ModelHub(server)
    try:
        commit = served.put(REPO, files)
        endpoint = f"https://localhost:{served.port}"
        hub = Hub(endpoint, ssl_context=client)
        snapshot = await hub.snapshot(REPO, "main", None)
        assert snapshot.commit == commit
        sizes = {file.path: file.size for file in snapshot.files}
        assert sizes == {path: len(data) for path, data in files.items()}
        for file in snapshot.files:
            whole = files[file.path]
            assert await content(hub, commit, file, 0, file.size) == whole
        large = next(file for file in snapshot.files if file.sha256)
        assert await content(hub, commit, large, 1000, 70_000) == files[large.path][1000:70_000]
        await hub.close()
        # A host that cannot prove its identity is rejected.
        stranger = Hub(endpoint)
        with pytest.raises(CapacityError) as caught:
            await stranger.snapshot(REPO, "main", None)
        assert caught.value.code == "hub_unavailable"
        await stranger.close()
    finally:
        served.close()


async def test_hangs() -> None:
    served = ModelHub()
    try:
        served.put(REPO, {"config.json": b"{}"})
        served.misbehaves.hangs_s = 5
        hub = Hub(served.endpoint, answer_s=0.2)
        with pytest.raises(CapacityError, match="in time"):
            await hub.snapshot(REPO, "main", None)
        await hub.close()
    finally:
        served.close()


async def test_silence() -> None:
    served = ModelHub()
    try:
        commit = served.put(REPO, {"model.safetensors": bytes(1 << 20)})
        hub = Hub(served.endpoint, silence_s=0.2)
        (file,) = (await hub.snapshot(REPO, "main", None)).files
        served.pace_s = 5
        with pytest.raises(CapacityError, match="closed the connection"):
            await content(hub, commit, file, 0, file.size)
        await hub.close()
    finally:
        served.close()


async def test_inward() -> None:
    """A private host other than the hub's own must be listed in the settings."""
    served = ModelHub()
    try:
        served.sends_elsewhere = True
        commit = served.put(REPO, {"model.safetensors": bytes(1 << 16)})
        hub = Hub(served.endpoint)
        (file,) = (await hub.snapshot(REPO, "main", None)).files
        with pytest.raises(HubError, match=r"not public.*STOKER_HUB_PRIVATE_HOSTS"):
            await content(hub, commit, file, 0, file.size)
        await hub.close()
        hub = Hub(served.endpoint, private_hosts=["localhost"])
        assert await content(hub, commit, file, 0, file.size) == bytes(1 << 16)
        await hub.close()
    finally:
        served.close()


@pytest.mark.parametrize("number", [socket.EAI_NONAME, socket.EAI_AGAIN])
async def test_without_dns(number: int) -> None:
    """The error names the missing address as its cause and does not mention private hosts."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(number, "no")

    hub = Hub("https://hub.example", resolve=resolve)
    with pytest.raises(CapacityError, match=r"'hub\.example' has no address.*no DNS") as raised:
        await hub.snapshot(REPO, "main", None)
    assert raised.value.code == "hub_unavailable"
    assert "PRIVATE_HOSTS" not in raised.value.message
    await hub.close()


@pytest.mark.parametrize("endpoint", ["", "hub", "ftp://hub", "http://a b", "http://u:p@hub"])
def test_address_that_is_none(endpoint: str) -> None:
    with pytest.raises(ValueError, match="address of a hub"):
        Hub(endpoint)
