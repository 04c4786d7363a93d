import time

import httpx

from tests.agents.conftest import MODELS
from tests.support.deploying import deploy, push


def test_a_new_version_is_proven_and_goes_live(smoke: httpx.Client) -> None:
    made = deploy(smoke, MODELS / "tiny-sentiment", "changing")
    path = f"/v1/deployments/{made['id']}"
    call = {"model": "changing", "inputs": "What a wonderful day."}
    first = smoke.post("/v1/classifications/text", json=call).raise_for_status().json()
    artifact = push(smoke, MODELS / "tiny-sentiment")
    body = {"artifact_id": artifact["id"]}
    version = smoke.post(f"{path}/versions", json=body).raise_for_status().json()
    deadline = time.monotonic() + 60
    while version["status"] in ("preparing", "checking"):
        assert time.monotonic() < deadline, version
        time.sleep(0.1)
        version = smoke.get(f"{path}/versions/{version['id']}").raise_for_status().json()
    assert version["status"] == "live"
    assert smoke.get(path).json()["version_id"] == version["id"]
    assert smoke.post("/v1/classifications/text", json=call).json() == first
    smoke.delete(path).raise_for_status()
