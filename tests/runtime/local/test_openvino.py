"""Models converted for OpenVINO in the background give the same answers before and after, without a
gap.
"""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import stoker.demo
from tests.support.deploying import deploy, deployment, push, wait_for
from tests.support.media import sound, wav
from tests.support.models import tiny_bert, tiny_vit
from tests.support.recognition import moonshine
from tests.support.server import Server, running

FEATURES = "/v1/feature-extraction"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
WORTH = 1.05
"""Minimum speedup over torch for a deployment that did not request OpenVINO."""
TEXTS = ["one", "two words", "a somewhat longer sentence about boats", "the piers " * 20]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("openvino") / "data"
    with running(data_dir, STOKER_CONVERT_AFTER_S="0.3", HOME=str(home)) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account() as client:
        yield client


@pytest.fixture(scope="module")
def embedder(client: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the artifact of a model that returns one vector per text."""
    folder = tiny_bert(tmp_path_factory.mktemp("models") / "embedder", "Model")
    return push(client, folder, pipeline="feature-extraction")["id"]


def deployed(client: httpx.Client, artifact_id: str, model: str, **fields: Any) -> str:
    body = {"model": model, "artifact_id": artifact_id, "readiness": "warm", **fields}
    return client.post("/v1/deployments", json=body).raise_for_status().json()["id"]


def vectors(client: httpx.Client, model: str, texts: list[str]) -> np.ndarray:
    answer = client.post(FEATURES, json={"model": model, "inputs": texts})
    return np.array(answer.raise_for_status().json())


def wait_engine(client: httpx.Client, identifier: str, engine: str, timeout: float = 120) -> Any:
    """Returns the worker once it runs on this engine."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for worker in deployment(client, identifier)["workers"]:
            if worker["engine"] == engine:
                return worker
        time.sleep(0.1)
    raise AssertionError(f"never on {engine}")


def verdicts(server: Server) -> dict[Path, Any]:
    paths = (server.data_dir / "cache" / "openvino").glob("*/*/verdict.json")
    return {path: json.loads(path.read_text()) for path in paths}


def trials(server: Server) -> dict[Path, Any]:
    paths = (server.data_dir / "cache" / "openvino").glob("*/*/trial-*.json")
    return {path: json.loads(path.read_text()) for path in paths}


def wait_verdict(server: Server, known: set[Path]) -> Any:
    """Waits for a new verdict and returns it."""
    deadline = time.monotonic() + 120
    while not set(verdicts(server)) - known and time.monotonic() < deadline:
        time.sleep(0.1)
    (path,) = set(verdicts(server)) - known
    return verdicts(server)[path]


def wait_trial(server: Server, known: set[Path]) -> Any:
    """Waits for a new trial and returns it."""
    deadline = time.monotonic() + 120
    while not set(trials(server)) - known and time.monotonic() < deadline:
        time.sleep(0.1)
    (path,) = set(trials(server)) - known
    return trials(server)[path]


def conversions(server: Server) -> list[int]:
    """Returns the pids of the processes that were started to convert a model."""
    log = (server.data_dir / "logs" / "conversions.log").read_text()
    return [int(pid) for pid in re.findall(r"starting, pid (\d+)", log)]


def test_swapped_in_live(server: Server, client: httpx.Client, embedder: str) -> None:
    identifier = deployed(client, embedder, "asked-for", engine="openvino")
    before = vectors(client, "asked-for", TEXTS)
    assert deployment(client, identifier)["workers"][0]["engine"] in ("torch", "")
    with ThreadPoolExecutor(2) as pool:
        # Calls continue during the conversion and the swap. None of them fails or differs.
        done = pool.submit(wait_engine, client, identifier, "openvino")
        while not done.done():
            assert np.abs(vectors(client, "asked-for", TEXTS[:2]) - before[:2]).max() < 1e-5
            time.sleep(0.05)
        worker = done.result()
    after = vectors(client, "asked-for", TEXTS)
    assert 0 < np.abs(after - before).max() < 1e-5, "equal to the bit: not another engine"
    alone = np.vstack([vectors(client, "asked-for", [text]) for text in TEXTS])
    assert np.abs(alone - before).max() < 1e-5
    assert worker["pid"] == deployment(client, identifier)["workers"][0]["pid"]
    [trial] = trials(server).values()
    assert trial["passed"]
    assert trial["difference"] < 1e-4
    assert trial["speedup"] > 0


def test_next_replica_takes_what_was_converted(
    server: Server, client: httpx.Client, embedder: str
) -> None:
    """Another deployment of the same artifact uses the existing conversion."""
    before = {path: path.stat().st_mtime_ns for path in verdicts(server)}
    identifier = deployed(client, embedder, "again", engine="openvino")
    wait_engine(client, identifier, "openvino", timeout=60)
    assert {path: path.stat().st_mtime_ns for path in verdicts(server)} == before


def test_what_is_not_faster_is_for_those_who_ask(
    server: Server, client: httpx.Client, embedder: str
) -> None:
    (path, trial), *_ = trials(server).items()
    path.write_text(json.dumps(trial | {"speedup": 1.01}))
    identifiers = [
        deployed(client, embedder, f"slow-{engine}", engine=engine)
        for engine in ("openvino", "auto")
    ]
    wait_engine(client, identifiers[0], "openvino")
    # The forward passes take long enough to be worth a conversion.
    for _ in range(50):
        vectors(client, "slow-auto", TEXTS * 8)
    # Heartbeats come every second, and adoption is tried twice a second.
    time.sleep(2.5)
    assert deployment(client, identifiers[1])["workers"][0]["engine"] == "torch"


def test_its_use_is_told_to_nobody(home: Path, client: httpx.Client, embedder: str) -> None:
    """OpenVINO and NNCF send no telemetry. They would identify the installation by a number in the
    home folder.
    """
    for model, fields in {"untold": {"engine": "openvino"}, "in-int8": {"dtype": "int8"}}.items():
        identifier = deployed(client, embedder, model, **fields)
        wait_engine(client, identifier, "openvino")
        assert vectors(client, model, TEXTS[:1]).size
    assert [*home.rglob("*")] == []


def test_pinned_to_torch(client: httpx.Client, embedder: str) -> None:
    identifier = deployed(client, embedder, "pinned", engine="torch")
    vectors(client, "pinned", TEXTS)
    # Heartbeats come every second, and adoption is tried twice a second.
    wait_engine(client, identifier, "torch")
    time.sleep(2.5)
    assert deployment(client, identifier)["workers"][0]["engine"] == "torch"


def test_automatic_one_is_converted_once_it_has_worked(
    server: Server, client: httpx.Client, tmp_path: Path
) -> None:
    """Also covers an image model, with samples of another size than the exported one."""
    identifier = deploy(client, tiny_vit(tmp_path / "vit"), "vit", readiness="warm")["id"]
    body = {"model": "vit", "inputs": _picture(), "top_k": 3}
    path = "/v1/classifications/image"
    before = client.post(path, json=body).raise_for_status().json()
    time.sleep(1.5)
    wait_engine(client, identifier, "torch", timeout=60)
    several = body | {"inputs": [_picture()] * 64}
    known, judged = conversions(server), set(trials(server))
    deadline = time.monotonic() + 120
    while conversions(server) == known:
        assert time.monotonic() < deadline, "it is not converted"
        client.post(path, json=several).raise_for_status()
    # No requests from here on: the conversion uses the time that requests leave it. The verdict
    # decides whether it is faster on a machine this busy.
    trial = wait_trial(server, judged)
    assert trial["passed"]
    engine = "openvino" if trial["speedup"] >= WORTH else "torch"
    wait_engine(client, identifier, engine)
    after = client.post(path, json=body).raise_for_status().json()
    many = client.post(path, json=several).raise_for_status()
    for old, new, batched in zip(before, after, many.json()[7], strict=True):
        assert old["label"] == new["label"] == batched["label"]
        assert new["score"] == pytest.approx(old["score"], abs=1e-5)
    assert deployment(client, identifier)["workers"][0]["engine"] == engine


def test_transcription_while_it_is_swapped(client: httpx.Client) -> None:
    """A model that runs in many steps returns the same texts and probabilities with either
    engine.
    """
    demo = Path(stoker.demo.__file__).parent
    identifier = deploy(
        client,
        demo / "models" / "tiny-transcriber",
        "transcriber",
        readiness="warm",
        engine="openvino",
    )["id"]
    clips = [path.read_bytes() for path in sorted((demo / "media" / "spoken").glob("*.ogg"))[:3]]
    before = [transcribed(client, "transcriber", clip) for clip in clips]
    assert deployment(client, identifier)["workers"][0]["engine"] in ("torch", "")
    with ThreadPoolExecutor(2) as pool:
        done = pool.submit(wait_engine, client, identifier, "openvino", 200)
        while not done.done():
            for clip, (text, logprobs) in zip(clips, before, strict=True):
                now, new_logprobs = transcribed(client, "transcriber", clip)
                assert now == text
                assert new_logprobs == pytest.approx(logprobs, abs=1e-3)
            # The conversion yields to working replicas.
            time.sleep(0.5)
        done.result()
    after = [transcribed(client, "transcriber", clip) for clip in clips]
    assert [text for text, _ in after] == [text for text, _ in before]
    for (_, new_logprobs), (_, logprobs) in zip(after, before, strict=True):
        assert new_logprobs == pytest.approx(logprobs, abs=1e-3)
    assert after != before, "equal to the bit: not another engine"


@pytest.fixture(scope="module")
def in_bf16() -> None:
    """Skips tests on processors that cannot compute in bfloat16."""
    import openvino

    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("needs a processor that computes in bfloat16")


@pytest.mark.usefixtures("in_bf16")
class TestInBfloat16:
    """OpenVINO computes in bfloat16 on request. The answers are near those of float32 but not
    equal.
    """

    def test_an_encoder(self, client: httpx.Client, embedder: str) -> None:
        deployed(client, embedder, "exact", engine="torch")
        exact = vectors(client, "exact", TEXTS)
        fields = {"engine": "openvino", "dtype": "bfloat16"}
        identifier = deployed(client, embedder, "rounded", **fields)
        wait_engine(client, identifier, "openvino")
        rounded = vectors(client, "rounded", TEXTS)
        assert 1e-4 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()
        alone = np.vstack([vectors(client, "rounded", [text]) for text in TEXTS])
        for vector in (*rounded, *alone):
            assert max(map(float, cosines(exact, vector))) > 0.999

    def test_images(self, client: httpx.Client, tmp_path: Path) -> None:
        """The pixels are passed in float32."""
        folder = tiny_vit(tmp_path / "vit")
        bodies: list[Any] = []
        for model, fields in {
            "exact-vit": {"engine": "torch"},
            "rounded-vit": {"engine": "openvino", "dtype": "bfloat16"},
        }.items():
            identifier = deploy(client, folder, model, readiness="warm", **fields)["id"]
            wait_engine(client, identifier, str(fields["engine"]))
            body = {"model": model, "inputs": _picture(), "top_k": 3}
            answer = client.post("/v1/classifications/image", json=body).raise_for_status()
            bodies.append(
                {prediction["label"]: prediction["score"] for prediction in answer.json()}
            )
        exact, rounded = bodies
        assert rounded == pytest.approx(exact, abs=0.02)
        assert rounded != exact

    def test_speech(self, client: httpx.Client) -> None:
        """Transcription runs in many steps. Only torch returns words."""
        demo = Path(stoker.demo.__file__).parent
        clip = (demo / "media" / "seven-three-one.wav").read_bytes()
        folder = demo / "models" / "tiny-transcriber"
        fields = {"engine": "openvino", "dtype": "bfloat16"}
        identifier = deploy(client, folder, "rounded-speech", readiness="warm", **fields)["id"]
        wait_engine(client, identifier, "openvino", 200)
        text, logprobs = transcribed(client, "rounded-speech", clip)
        assert text == "seven three one"
        assert max(logprobs) <= 0
        form = {
            "model": "rounded-speech",
            "response_format": "verbose_json",
            "timestamp_granularities[]": "word",
        }
        answer = client.post(TRANSCRIPTIONS, data=form, files={"file": ("a.wav", clip)})
        words = [word["word"].strip() for word in answer.raise_for_status().json()["words"]]
        assert words == ["seven", "three", "one"]


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return ours @ theirs / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs)


def test_what_cannot_be_converted(server: Server, client: httpx.Client, tmp_path: Path) -> None:
    """Moonshine cannot be converted, because it uses transformers' own search with a data-dependent
    loop.
    """
    (tmp_path / "moonshine").mkdir()
    moonshine(tmp_path / "moonshine")
    known = set(verdicts(server))
    artifact = push(client, tmp_path / "moonshine", pipeline="automatic-speech-recognition")
    automatic = deployed(client, artifact["id"], "moonshine")
    clip = {"file": wav(sound(0, 0.5))}
    before = client.post(TRANSCRIPTIONS, data={"model": "moonshine"}, files=clip).json()["text"]
    pinned = deployed(client, artifact["id"], "pinned-moonshine", engine="openvino")
    verdict = wait_verdict(server, known)
    assert verdict["forms"] == []
    failed = wait_for(client, pinned, "failed")
    assert failed["reason"] == "engine_failed"
    assert failed["message"] == (
        f"It cannot be converted for OpenVINO. {verdict['reason']} Set 'engine' to 'auto' or "
        "'torch'."
    )
    # The failure is permanent, and the conversion is not tried again.
    refused = client.post(TRANSCRIPTIONS, data={"model": "pinned-moonshine"}, files=clip)
    assert refused.status_code == 503
    assert failed["message"].rstrip(".") in refused.json()["error"]["message"]
    after = client.post(TRANSCRIPTIONS, data={"model": "moonshine"}, files=clip)
    assert after.raise_for_status().json()["text"] == before
    assert deployment(client, automatic)["workers"][0]["engine"] == "torch"


def transcribed(client: httpx.Client, model: str, clip: bytes) -> tuple[str, list[float]]:
    """Returns the text and the logarithm of each token's probability."""
    body = {"model": model, "include[]": "logprobs"}
    answer = client.post(TRANSCRIPTIONS, data=body, files={"file": clip}).raise_for_status().json()
    return answer["text"], [token["logprob"] for token in answer["logprobs"]]


def test_killed_conversion_costs_nothing(
    server: Server, client: httpx.Client, tmp_path: Path
) -> None:
    folder = tiny_bert(tmp_path / "bert")
    known = conversions(server)
    identifier = deploy(client, folder, "killed", readiness="warm", engine="openvino")["id"]
    deadline = time.monotonic() + 120
    while (begun := conversions(server)) == known:
        assert time.monotonic() < deadline, "it is not converted"
        time.sleep(0.01)
    os.kill(begun[-1], signal.SIGKILL)
    body = {"model": "killed", "inputs": "my name is clara"}
    for _ in range(3):
        client.post("/v1/classifications/token", json=body).raise_for_status()
    assert deployment(client, identifier)["workers"][0]["engine"] == "torch"


def test_goes_with_the_last_deployment_of_its_source(
    server: Server, client: httpx.Client, embedder: str
) -> None:
    before = verdicts(server)
    models = client.get("/v1/deployments", params={"limit": 100}).json()["data"]
    identifiers = [model["id"] for model in models if model["artifact_id"] == embedder]
    assert len(identifiers) > 1
    for identifier in identifiers[1:]:
        client.delete(f"/v1/deployments/{identifier}").raise_for_status()
    assert verdicts(server) == before
    client.delete(f"/v1/deployments/{identifiers[0]}").raise_for_status()
    gone = set(before) - set(verdicts(server))
    # All its files are deleted, in every precision.
    (folder,) = {path.parent.parent for path in gone}
    assert not list(folder.parent.glob(f"{folder.name}/*"))


def _picture() -> str:
    import base64
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
