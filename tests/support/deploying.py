"""From a model folder to a deployment that can be called, over HTTP."""

import time
from pathlib import Path
from typing import Any

import httpx


def push(client: httpx.Client, folder: Path, **fields: Any) -> dict[str, Any]:
    """Upload a folder's files; the artifact, ready."""
    body = {"display_name": folder.name, **fields}
    artifact = client.post("/v1/model-artifacts", json=body).raise_for_status().json()
    uploads = f"/v1/model-artifacts/{artifact['id']}/uploads"
    session = f"{uploads}/{client.post(uploads).raise_for_status().json()['upload_id']}"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            client.put(f"{session}/files/{name}", content=path.read_bytes()).raise_for_status()
    artifact = client.post(f"{session}/complete").raise_for_status().json()["artifact"]
    assert artifact["status"] == "ready", artifact
    return artifact


def deploy(client: httpx.Client, folder: Path, model: str, **fields: Any) -> dict[str, Any]:
    artifact = push(client, folder)
    body = {"model": model, "artifact_id": artifact["id"], **fields}
    return client.post("/v1/deployments", json=body).raise_for_status().json()


def deployment(client: httpx.Client, identifier: str) -> dict[str, Any]:
    return client.get(f"/v1/deployments/{identifier}").raise_for_status().json()


def wait_for(
    client: httpx.Client, identifier: str, status: str, timeout: float = 120
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = deployment(client, identifier)
        if found["status"] == status:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not {status}: {found}")
