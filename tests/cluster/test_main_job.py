"""The main job over two gateways and two nodes: push, deploy, call, stream, video, agent, bill.

It runs once with gateways that choose nodes themselves, and once with Ray.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.agents.conftest import MODEL
from tests.agents.support import ANSWERED, FRANCE, PARIS, SUNNY, WEATHER, Account, spoken
from tests.cluster.support import Cluster
from tests.demo.sentences import SIMILAR
from tests.servers.support import until
from tests.support import postgres
from tests.support import video as video_models
from tests.support.deploying import deploy, wait_for
from tests.usage.books import closed
from tests.usage.test_over_http import MODELS, usage
from tests.videos.conftest import QUICK, decoded

ASKED: list[Any] = [{"role": "user", "content": FRANCE}]
NEGATIVE = {"inputs": "The food was not good at all."}
PROMPT = "a red circle moves to the right"


@dataclass
class Job:
    """An account at both gateways, with the expected usage of its calls."""

    a: httpx.Client
    b: httpx.Client
    sdks: list[openai.OpenAI]
    deployed: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    expected: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def count(self, model: str, **counts: int) -> None:
        """Adds a request and other counts to the expected bill of a model."""
        of_model = self.expected.setdefault(model, {})
        for name, count in ({"requests": 1} | counts).items():
            of_model[name] = of_model.get(name, 0) + count


@pytest.fixture(scope="module", params=[pytest.param("nodes", marks=pytest.mark.release), "ray"])
def either(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if request.param == "nodes":
        yield request.getfixturevalue("cluster")
        return
    pytest.importorskip("ray", reason="Ray is not installed: make install-dev")
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    fleet = Cluster(tmp_path_factory.mktemp("ray") / "data", "--ray")
    try:
        yield fleet.start()
    finally:
        fleet.stop()


@pytest.fixture(scope="module")
def job(either: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Yields a job with models that are pushed and deployed through both gateways."""
    with either.account("main job") as client:
        a, b = either.on_each(client)
        key = client.headers["authorization"].removeprefix("Bearer ")
    sdks = [openai.OpenAI(base_url=f"{url}/v1", api_key=key) for url in either.gateways]
    new_job = Job(a, b, sdks)
    film = video_models.ltx(tmp_path_factory.mktemp("film") / "film")
    with a, b:
        new_job.deployed = {
            "chat": deploy(a, MODEL, "chat", engine="torch", readiness="warm"),
            "encoder": deploy(b, MODELS / "tiny-encoder", "encoder"),
            "film": deploy(a, film, "film"),
        }
        for client in (a, b):
            for model in new_job.deployed:
                wait_known(client, model)
            wait_for(client, new_job.deployed["chat"]["id"], "ready")
        yield new_job


def wait_known(client: httpx.Client, model: str) -> None:
    """Waits until a model is listed.

    A model that was deployed through the other gateway is callable after two seconds at most.
    """
    until(lambda: model in {row["id"] for row in client.get("/v1/models").json()["data"]})


def test_upload_that_goes_on_at_the_other_gateway(job: Job) -> None:
    folder = MODELS / "tiny-sentiment"
    made = job.a.post("/v1/model-artifacts", json={"display_name": "sentiment"})
    uploads = f"/v1/model-artifacts/{made.raise_for_status().json()['id']}/uploads"
    session = f"{uploads}/{job.a.post(uploads).raise_for_status().json()['upload_id']}"
    for number, path in enumerate(sorted(one for one in folder.rglob("*") if one.is_file())):
        client = (job.a, job.b)[number % 2]
        name = path.relative_to(folder).as_posix()
        client.put(f"{session}/files/{name}", content=path.read_bytes()).raise_for_status()
    artifact = job.b.post(f"{session}/complete").raise_for_status().json()["artifact"]
    assert artifact["status"] == "ready", artifact
    body = {"model": "sentiment", "artifact_id": artifact["id"]}
    one = job.b.post("/v1/deployments", json=body).raise_for_status().json()
    job.deployed["sentiment"] = one
    for client in (job.a, job.b):
        wait_known(client, "sentiment")
        answer = client.post("/v1/classifications/text", json=NEGATIVE | {"model": "sentiment"})
        labels = answer.raise_for_status().json()
        assert max(labels, key=lambda label: label["score"])["label"] == "negative"
        job.count("sentiment")


def test_chat(job: Job) -> None:
    for sdk in job.sdks:
        completion = sdk.chat.completions.create(model="chat", messages=ASKED, temperature=0)
        assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == (
            PARIS,
            "stop",
        )
        assert completion.usage
        job.count(
            "chat",
            input_tokens=completion.usage.prompt_tokens,
            output_tokens=completion.usage.completion_tokens,
        )


def test_stream(job: Job) -> None:
    for sdk in job.sdks:
        parts = [
            *sdk.chat.completions.create(
                model="chat",
                messages=ASKED,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        texts = [piece.choices[0].delta.content or "" for piece in parts if piece.choices]
        assert "".join(texts) == PARIS
        assert len([piece for piece in texts if piece]) > 1, "it came whole"
        counts = parts[-1].usage
        assert counts
        job.count("chat", input_tokens=counts.prompt_tokens, output_tokens=counts.completion_tokens)


def test_embeddings(job: Job) -> None:
    """Both gateways return the same numbers, and similar texts have similar embeddings."""
    texts = [*SIMILAR[0]]
    vectors: list[np.ndarray] = []
    for sdk in job.sdks:
        made = sdk.embeddings.create(model="encoder", input=texts)
        vectors.append(np.array([row.embedding for row in made.data]))
        job.count("encoder", input_tokens=made.usage.prompt_tokens)
    np.testing.assert_allclose(*vectors, atol=1e-6)
    text, related, unrelated = vectors[0]
    assert text @ related > text @ unrelated


def test_video(job: Job) -> None:
    """A video is requested through one gateway, and polled and read through the other."""
    on_a, on_b = job.sdks
    video = on_a.videos.create(model="film", prompt=PROMPT, extra_body=QUICK)
    done = on_b.videos.poll(video.id)
    assert (done.status, done.error) == ("completed", None)
    content = on_b.videos.download_content(video.id).read()
    assert decoded(content) == (9, 64, 32, 25.0, "h264")
    assert on_a.videos.download_content(video.id).read() == content
    job.count("film", video_ms=round(float(done.seconds) * 1000))


def test_agent(job: Job) -> None:
    """An agent is created through one gateway and run through the other.

    Its tool is answered through the first.
    """
    a = Account(job.a, job.deployed["chat"]["id"])
    b = Account(job.b, job.deployed["chat"]["id"])
    run = b.run(a.agent(tools=[WEATHER]))
    a.answer(run, SUNNY)
    finished = b.until(run)
    assert (finished["status"], finished["output"]) == ("completed", ANSWERED)
    followed = [[*account.stream(run)] for account in (a, b)]
    assert followed[0] == followed[1] == a.events(run)
    assert spoken(followed[0])[2] == ANSWERED
    used = finished["usage"]
    job.count(
        "chat",
        requests=used["steps"],
        input_tokens=used["prompt_tokens"],
        output_tokens=used["completion_tokens"],
    )


def test_bill(job: Job) -> None:
    """Calls through either gateway are counted once, and the ledger balances.

    The memory that nodes hold is charged once.
    """
    requests = sum(counts["requests"] for counts in job.expected.values())
    until(lambda: usage(job.b)["total"]["requests"] >= requests)
    report = closed((job.a, job.b), job.deployed.values())
    rows = {row["model"]: row for row in report["data"] if row["model"]}
    assert set(rows) == set(job.deployed)
    for model, expected in job.expected.items():
        assert {name: rows[model][name] for name in expected} == expected, model
        assert rows[model]["memory_mib_ms"] > 0, model
    assert report["total"]["requests"] == requests
