"""Helpers for tests that need a deployed model."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.artifacts.support import Uploading
from tests.support.models import tiny_bert
from tests.support.server import Server

DEPLOYMENTS = "/v1/deployments"
TOKENS = "/v1/classifications/token"
MASKS = "/v1/fill-mask"
TEXT = "my name is clara"

_kept: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def bert(head: str = "ForTokenClassification") -> Path:
    """Returns the folder of a tiny model, which is built once per test run."""
    _kept.append(tempfile.TemporaryDirectory(prefix="stoker-tests-"))
    return tiny_bert(Path(_kept[-1].name) / "bert", head)


def upload(server: Server, client: httpx.Client) -> str:
    """Uploads a token classification model. Returns the id of the ready artifact."""
    session = Uploading.open(server, client)
    session.put_folder(bert())
    assert session.complete().json()["artifact"]["status"] == "ready"
    return session.artifact_id


def deploy(client: httpx.Client, artifact_id: str, model: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "artifact_id": artifact_id, **fields}
    return client.post(DEPLOYMENTS, json=body).raise_for_status().json()


def call(client: httpx.Client, model: str | None = None, wait: int | None = None, **fields: Any):
    body = {"inputs": TEXT, **({"model": model} if model else {}), **fields}
    headers = {} if wait is None else {"prefer": f"wait={wait}"}
    return client.post(TOKENS, json=body, headers=headers)


def key_for(client: httpx.Client, *deployment_ids: str) -> str:
    """Creates a key that may call these deployments."""
    body = {"scope": "deployment", "deployment_ids": deployment_ids}
    return client.post("/v1/api-keys", json=body).raise_for_status().json()["key"]


def check_error(
    response: httpx.Response, status: int, kind: str, code: str, param: str | None = None
) -> dict[str, Any]:
    """Checks status and shape of an error response. Returns the error."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    error = response.json()["error"]
    assert set(error) - {"progress"} == {"type", "code", "message", "param"}
    assert (error["type"], error["code"], error["param"]) == (kind, code, param), error
    assert error["message"]
    return error
