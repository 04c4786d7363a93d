"""Turns a model folder into a callable deployment over HTTP."""

import time
from pathlib import Path
from typing import Any

import httpx


def push(client: httpx.Client, folder: Path, **fields: Any) -> dict[str, Any]:
    """Uploads a folder's files and returns the artifact once it is ready."""
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
        row = deployment(client, identifier)
        if row["status"] == status:
            return row
        time.sleep(0.05)
    raise AssertionError(f"not {status}: {row}")
