"""Models of a data folder that was moved, copied or damaged load, or report the missing files."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.cli import server_health
from stoker.cli.context import Context
from tests.artifacts.support import eventually
from tests.deployments.support import DEPLOYMENTS, call, deploy, upload
from tests.support.server import Server, running

pytestmark = pytest.mark.one_machine

WEIGHTS = "model.safetensors"


def links(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "models").rglob("*") if path.is_symlink()]


def placed(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "models").glob("upl_*") if (path / WEIGHTS).exists()]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Runs a server with two models and stops it. Returns its data folder and its account's key."""
    data_dir = tmp_path_factory.mktemp("moved") / "first"
    with running(data_dir) as server, server.account() as client:
        for number, model in enumerate(("whole", "damaged"), 1):
            deploy(client, upload(server, client), model)
            # The files are placed before any call.
            eventually(lambda: len(placed(data_dir)) == number)  # noqa: B023
        key = client.headers["authorization"].removeprefix("Bearer ")
    return data_dir, key


@pytest.fixture(scope="module")
def copied(original: tuple[Path, str]) -> Iterator[tuple[Server, httpx.Client]]:
    """Runs a server on a copy of the folder, while the original still exists. One of the models
    lacks its weights in the copy. Links are absolute, as earlier releases created them.
    """
    first, key = original
    assert not any(link.readlink().is_absolute() for link in links(first))
    copy = first.parent / "deeper" / "copy"
    shutil.copytree(first, copy)
    shutil.rmtree(copy / "models")
    shutil.copytree(first / "models", copy / "models", symlinks=True)
    for link in links(first):
        target = copy / link.relative_to(first)
        target.unlink()
        target.symlink_to(link.resolve())
    lost = sorted(link for link in links(first) if link.name == WEIGHTS)[-1].resolve()
    (copy / lost.relative_to(first)).rename(copy / "aside")
    with running(copy) as server, server.client(key) as client:
        server.wait_ready()
        yield server, client


def row(client: httpx.Client, model: str) -> dict[str, Any]:
    rows = client.get(DEPLOYMENTS).json()["data"]
    return next(deployment for deployment in rows if deployment["model"] == model)


def test_a_copy_uses_its_own_files(copied: tuple[Server, httpx.Client]) -> None:
    server, client = copied
    assert call(client, "whole", wait=60).status_code == 200
    led = [link.resolve() for link in links(server.data_dir) if not link.readlink().is_absolute()]
    assert len(led) == len(links(server.data_dir)) / 2
    assert all(path.is_relative_to(server.data_dir) and path.exists() for path in led)


def test_missing_files_are_named(copied: tuple[Server, httpx.Client]) -> None:
    """The deployment's status and logs, /ready and the doctor name missing files. The model runs
    once the files are restored.
    """
    server, client = copied
    cause = f"'{WEIGHTS}' is missing"
    lost = row(client, "damaged")
    assert (lost["status"], lost["reason"]) == ("failed", "files_missing")
    assert cause in lost["message"] and str(server.data_dir) not in lost["message"]
    assert cause in client.get(f"{DEPLOYMENTS}/{lost['id']}/logs").json()["data"][-1]
    ready = client.get("/ready")
    assert ready.status_code == 200
    assert "1 of 2 models have missing files" in ready.json()["warning"]
    checks = {check.name: check for check in server_health.checks(Context(server.base_url, None))}
    assert checks["model files"].status == "fail"
    client.post(f"{DEPLOYMENTS}/{lost['id']}/start").raise_for_status()
    refused = call(client, "damaged", wait=10)
    assert refused.status_code == 503 and cause in refused.json()["error"]["message"]

    first = server.data_dir.parents[1] / "first"
    weights = sorted(link for link in links(first) if link.name == WEIGHTS)[-1].resolve()
    back, whole = server.data_dir / weights.relative_to(first), (server.data_dir / "aside")
    back.write_bytes(whole.read_bytes()[:-1])
    client.post(f"{DEPLOYMENTS}/{lost['id']}/start").raise_for_status()
    assert f"{WEIGHTS}' has" in call(client, "damaged", wait=10).json()["error"]["message"]

    whole.rename(back)
    client.post(f"{DEPLOYMENTS}/{lost['id']}/start").raise_for_status()
    assert call(client, "damaged", wait=60).status_code == 200
    assert client.get("/ready").json()["warning"] is None
