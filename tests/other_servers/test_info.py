"""`GET /info`, the formats of errors, and clients of Text Embeddings Inference."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError

import stoker
from stoker.base.errors import (
    CapacityError,
    InferenceError,
    InferenceTimeoutError,
    InvalidRequestError,
    ModelLoadingError,
    RateLimitError,
    StokerError,
)
from stoker.platform.web.error_formats import ErrorFormat, TeiErrorBody, body_of, format_of
from tests.deployments.support import key_for
from tests.other_servers.conftest import CHAT, CLASSIFIER, ENCODER, MASKED, RERANKER
from tests.other_servers.support import close
from tests.support.hub import inference_client
from tests.support.server import Server

COMMON = {
    "model_sha": None,
    "model_dtype": "float32",
    "max_concurrent_requests": 256,
    "max_input_length": 128,
    "max_batch_requests": None,
    "max_client_batch_size": 256,
    "auto_truncate": False,
    "version": stoker.__version__,
}


def labels(*names: str) -> dict[str, Any]:
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


class TestInfo:
    @pytest.mark.parametrize(
        ("model", "kind"),
        [
            (ENCODER, {"embedding": {"pooling": "mean"}}),
            (RERANKER, {"reranker": labels("relevance")}),
            (CLASSIFIER, {"classifier": labels("negative", "positive")}),
        ],
    )
    def test_models(self, client: httpx.Client, model: str, kind: dict[str, Any]) -> None:
        response = client.get("/info", params={"model": model})
        assert response.json() == {"model_id": model, "model_type": kind, **COMMON}

    def test_settings_of_the_deployment(self, client: httpx.Client) -> None:
        rows = client.get("/v1/deployments").json()["data"]
        (row,) = [row for row in rows if row["model"] == RERANKER]
        path = f"/v1/deployments/{row['id']}"
        client.patch(path, json={"max_queue": 7}).raise_for_status()
        facts = client.get("/info", params={"model": RERANKER}).json()
        assert facts["max_concurrent_requests"] == 7
        client.patch(path, json={"max_queue": 256}).raise_for_status()

    def test_key_of_one_deployment(self, server: Server, client: httpx.Client) -> None:
        rows = {row["model"]: row["id"] for row in client.get("/v1/deployments").json()["data"]}
        with server.client(key_for(client, rows[ENCODER])) as single:
            assert single.get("/info").json()["model_id"] == ENCODER
            response = single.get("/info", params={"model": RERANKER})
            assert response.status_code == 401
            assert f"does not cover '{RERANKER}'" in response.json()["error"]

    def test_refusals(self, server: Server, client: httpx.Client) -> None:
        response = client.get("/info")
        assert response.status_code == 400
        assert ENCODER in response.json()["error"] and response.json()["param"] == "model"
        for model in (CHAT, MASKED):
            response = client.get("/info", params={"model": model})
            assert response.json()["code"] == "endpoint_not_supported"
        with server.account("another") as stranger:
            response = stranger.get("/info", params={"model": ENCODER})
            assert (response.status_code, response.json()["code"]) == (404, "model_not_found")
        with server.client("sk-0-0") as nobody:
            response = nobody.get("/info")
            assert (response.status_code, response.json()["error_type"]) == (401, "Validation")
        assert client.post("/info").status_code == 405


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (InvalidRequestError("x", param="inputs"), "Validation"),
            (RateLimitError("x"), "Overloaded"),
            (ModelLoadingError("x", progress=0.5), "Unhealthy"),
            (CapacityError("x"), "Unhealthy"),
            (InferenceError("x"), "Backend"),
            (InferenceTimeoutError("x"), "Backend"),
        ],
    )
    def test_types(self, error: StokerError, kind: str) -> None:
        body = TeiErrorBody.model_validate(body_of(error, ErrorFormat.TEI))
        assert (body.error, body.error_type, body.code) == ("x", kind, error.code)
        assert (body.param, body.progress) == (error.param, error.progress)

    def test_shared_paths_keep_their_format(self) -> None:
        for path in ("/rerank", "/tokenize", "/detokenize", "/v1/rerank"):
            assert format_of(path, {}) is ErrorFormat.OWN
        assert format_of("/embed", {}) is ErrorFormat.TEI

    @pytest.mark.parametrize("content", [b"{", b'{"inputs": "\\ud800"}', b"[1]", b""])
    def test_unreadable_bodies(self, client: httpx.Client, content: bytes) -> None:
        headers = {"content-type": "application/json"}
        response = client.post("/embed", content=content, headers=headers)
        assert response.status_code == 400
        assert isinstance(response.json()["error"], str)
        response = client.post("/rerank", content=content, headers=headers)
        assert response.json()["error"]["message"]


class TestHubClient:
    """huggingface_hub's client, with the address of an endpoint as its model."""

    def test_vectors(self, client: httpx.Client, folders: dict[str, Path]) -> None:
        from sentence_transformers import SentenceTransformer

        encoder: Any = SentenceTransformer(str(folders[ENCODER]), device="cpu")
        texts = ["How do I bake bread?", "Rain"]
        hub = inference_client(client, ENCODER, "/embed")
        close(hub.feature_extraction(texts), encoder.encode(texts))
        found = hub.feature_extraction(texts, normalize=False, truncate=True)
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() > 0.1
        long = "bread " * 400
        found = hub.feature_extraction(long, truncate=True, truncation_direction="left")
        assert np.shape(found) == (1, 64)
        with pytest.raises(HfHubHTTPError, match="at most 128"):
            hub.feature_extraction(long)

    def test_similarity(self, client: httpx.Client) -> None:
        hub = inference_client(client, ENCODER, "/similarity")
        found = hub.sentence_similarity("bread", other_sentences=["bread", "trains"])
        assert found[0] == pytest.approx(1, abs=1e-4) and found[1] < 0.99
