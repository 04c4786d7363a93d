"""huggingface_hub's client for the endpoint of one deployment."""

import httpx
from huggingface_hub import InferenceClient

from tests.deployments.support import key_for


def inference_client(account: httpx.Client, model: str, path: str) -> InferenceClient:
    """Returns a client as users build it: with an endpoint's URL and a key of scope
    `deployment`.
    """
    rows = account.get("/v1/deployments").raise_for_status().json()["data"]
    (identifier,) = (row["id"] for row in rows if row["model"] == model)
    return InferenceClient(
        f"{account.base_url}{path}", provider="hf-inference", token=key_for(account, identifier)
    )
