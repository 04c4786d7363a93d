"""The main job over two gateways and two nodes: push, deploy, call, stream, video, agent, bill.

Once where gateways choose nodes themselves, and once where Ray does.
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
    """One account, as both gateways see it, and what its calls have come to."""

    a: httpx.Client
    b: httpx.Client
    sdks: list[openai.OpenAI]
    deployed: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    expected: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def count(self, model: str, **counts: int) -> None:
        """What the bill is to say, beside what it was to say before."""
        of_model = self.expected.setdefault(model, {})
        for name, count in ({"requests": 1} | counts).items():
            of_model[name] = of_model.get(name, 0) + count


@pytest.fixture(scope="module", params=["nodes", "ray"])
def either(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if request.param == "nodes":
        yield request.getfixturevalue("cluster")
        return
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    found = Cluster(tmp_path_factory.mktemp("ray") / "data", "--ray")
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="module")
def job(either: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Pushed and deployed: some through one gateway, some through the other."""
    with either.account("main job") as client:
        a, b = either.on_each(client)
        key = client.headers["authorization"].removeprefix("Bearer ")
    sdks = [openai.OpenAI(base_url=f"{url}/v1", api_key=key) for url in either.gateways]
    found = Job(a, b, sdks)
    film = video_models.ltx(tmp_path_factory.mktemp("film") / "film")
    with a, b:
        found.deployed = {
            "chat": deploy(a, MODEL, "chat", engine="torch", readiness="warm"),
            "encoder": deploy(b, MODELS / "tiny-encoder", "encoder"),
            "film": deploy(a, film, "film"),
        }
        for client in (a, b):
            for model in found.deployed:
                wait_known(client, model)
            wait_for(client, found.deployed["chat"]["id"], "ready")
        yield found


def wait_known(client: httpx.Client, model: str) -> None:
    """What was deployed through the other gateway is callable after two seconds at most."""
    until(lambda: model in {one["id"] for one in client.get("/v1/models").json()["data"]})


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
        said = sdk.chat.completions.create(model="chat", messages=ASKED, temperature=0)
        assert (said.choices[0].message.content, said.choices[0].finish_reason) == (PARIS, "stop")
        assert said.usage
        job.count(
            "chat",
            input_tokens=said.usage.prompt_tokens,
            output_tokens=said.usage.completion_tokens,
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
        texts = [one.choices[0].delta.content or "" for one in parts if one.choices]
        assert "".join(texts) == PARIS
        assert len([one for one in texts if one]) > 1, "it came whole"
        told = parts[-1].usage
        assert told
        job.count("chat", input_tokens=told.prompt_tokens, output_tokens=told.completion_tokens)


def test_embeddings(job: Job) -> None:
    """The same numbers by both, and those that are near what is near."""
    texts = [*SIMILAR[0]]
    vectors: list[np.ndarray] = []
    for sdk in job.sdks:
        made = sdk.embeddings.create(model="encoder", input=texts)
        vectors.append(np.array([one.embedding for one in made.data]))
        job.count("encoder", input_tokens=made.usage.prompt_tokens)
    np.testing.assert_allclose(*vectors, atol=1e-6)
    text, related, unrelated = vectors[0]
    assert text @ related > text @ unrelated


def test_video(job: Job) -> None:
    """Asked for through one gateway, polled and read through the other."""
    on_a, on_b = job.sdks
    video = on_a.videos.create(model="film", prompt=PROMPT, extra_body=QUICK)
    done = on_b.videos.poll(video.id)
    assert (done.status, done.error) == ("completed", None)
    content = on_b.videos.download_content(video.id).read()
    assert decoded(content) == (9, 64, 32, 25.0, "h264")
    assert on_a.videos.download_content(video.id).read() == content
    job.count("film", video_ms=round(float(done.seconds) * 1000))


def test_agent(job: Job) -> None:
    """Made through one gateway, run through the other; its tool is answered through the first."""
    a = Account(job.a, job.deployed["chat"]["id"])
    b = Account(job.b, job.deployed["chat"]["id"])
    run = b.run(a.agent(tools=[WEATHER]))
    a.answer(run, SUNNY)
    found = b.until(run)
    assert (found["status"], found["output"]) == ("completed", ANSWERED)
    followed = [[*one.stream(run)] for one in (a, b)]
    assert followed[0] == followed[1] == a.events(run)
    assert spoken(followed[0])[2] == ANSWERED
    used = found["usage"]
    job.count(
        "chat",
        requests=used["steps"],
        input_tokens=used["prompt_tokens"],
        output_tokens=used["completion_tokens"],
    )


def test_bill(job: Job) -> None:
    """What was called through either is counted once, what nodes hold is charged once, and the
    ledger balances.
    """
    requests = sum(one["requests"] for one in job.expected.values())
    until(lambda: usage(job.b)["total"]["requests"] >= requests)
    report = closed((job.a, job.b), job.deployed.values())
    rows = {row["model"]: row for row in report["data"] if row["model"]}
    assert set(rows) == set(job.deployed)
    for model, expected in job.expected.items():
        assert {name: rows[model][name] for name in expected} == expected, model
        assert rows[model]["memory_mib_ms"] > 0, model
    assert report["total"]["requests"] == requests
