"""huggingface_hub's client of one deployment's endpoint."""

import httpx
from huggingface_hub import InferenceClient

from tests.deployments.support import key_for


def inference_client(account: httpx.Client, model: str, path: str) -> InferenceClient:
    """As its users make it: an endpoint's URL, and a key for the deployment alone."""
    rows = account.get("/v1/deployments").raise_for_status().json()["data"]
    (identifier,) = (row["id"] for row in rows if row["model"] == model)
    return InferenceClient(
        f"{account.base_url}{path}", provider="hf-inference", token=key_for(account, identifier)
    )
