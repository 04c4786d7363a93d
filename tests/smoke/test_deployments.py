import httpx

from tests.agents.conftest import MODELS
from tests.support.deploying import deploy, wait_for


def test_load_stop_and_delete(smoke: httpx.Client) -> None:
    made = deploy(smoke, MODELS / "tiny-sentiment", "sentiment", readiness="hot")
    path = f"/v1/deployments/{made['id']}"
    assert len(wait_for(smoke, made["id"], "ready")["workers"]) == 1
    smoke.post(f"{path}/stop").raise_for_status()
    assert wait_for(smoke, made["id"], "stopped")["workers"] == []
    call = {"model": "sentiment", "inputs": "good"}
    refused = smoke.post("/v1/classifications/text", json=call)
    assert refused.json()["error"]["code"] == "deployment_stopped"
    smoke.delete(path).raise_for_status()
    assert smoke.get(path).status_code == 404
