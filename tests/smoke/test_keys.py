from collections.abc import Callable
from typing import Any

import httpx

from tests.support.server import Server


def test_scope_rotation_and_revocation(
    smoke: httpx.Client, restartable: Server, deployed: Callable[[str], dict[str, Any]]
) -> None:
    body = {"scope": "deployment", "deployment_ids": [deployed("tiny-ner")["id"]]}
    made = smoke.post("/v1/api-keys", json=body).raise_for_status().json()
    with restartable.client(made["key"]) as holder:
        assert [model["id"] for model in holder.get("/v1/models").json()["data"]] == ["tiny-ner"]
        assert holder.get("/v1/deployments").status_code == 401
        rotated = smoke.post(f"/v1/api-keys/{made['id']}/rotate").raise_for_status().json()
        assert rotated["key"] != made["key"]
        smoke.delete(f"/v1/api-keys/{made['id']}").raise_for_status()
        assert holder.get("/v1/models").status_code == 401
