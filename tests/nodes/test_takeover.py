"""Another gateway takes over all kinds of work of a killed gateway."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents.conftest import MODEL
from tests.agents.support import COUNT, Account, begun, check_resumed
from tests.artifacts.support import Uploading, sent_range
from tests.deployments.support import bert, call
from tests.nodes.support import Fleet, fleet
from tests.nodes.test_faults import Streaming
from tests.servers.support import until
from tests.support import postgres
from tests.support import video as video_models
from tests.support.deploying import deploy, wait_for
from tests.usage.books import closed
from tests.videos.conftest import QUICK, decoded

pytestmark = pytest.mark.release

PATIENCE_S = 90.0
STILL = "STOKER_HEARTBEAT_TIMEOUT_S"
WEIGHTS = "model.safetensors"
TOKENS = 300
FILM = {"model": "film", "prompt": "a red circle moves to the right", **QUICK}
LONG = FILM | {"num_inference_steps": 200}


@dataclass
class Job:
    """An account with a client of the gateway that is killed and a client of the other gateway."""

    fleet: Fleet
    a: httpx.Client
    b: httpx.Client
    chat: dict[str, Any]
    film: dict[str, Any]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Yields a fleet with one gateway. `joined` starts the other once all work runs on the
    first.
    """
    settings = {"STOKER_JOB_LEASE_S": "3", "STOKER_UPLOAD_PART_MIB": "1", STILL: "120"}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(postgres.cluster())
        started_fleet = stack.enter_context(
            fleet(tmp_path / "fleet", cluster, gateways=1, **settings)
        )
        a = stack.enter_context(started_fleet.gateways[0].account("taken over"))
        chat = deploy(a, MODEL, "chat", engine="torch", readiness="warm")
        film = deploy(a, video_models.ltx(tmp_path / "film"), "film", readiness="warm")
        for deployment in (chat, film):
            wait_for(a, deployment["id"], "ready")
        yield Job(started_fleet, a, a, chat, film)


def joined(job: Job) -> Job:
    """Starts the other gateway, which finds all work under way."""
    gateway = job.fleet.add_gateway().start()
    gateway.wait_ready()
    key = job.a.headers["authorization"].removeprefix("Bearer ")
    return replace(job, b=gateway.client(key))


@pytest.mark.fault("n16")
def test_a_gateway_is_killed_with_all_kinds_of_work(job: Job) -> None:
    first = job.fleet.gateways[0]
    chat, film = Account(job.a, job.chat["id"]), Account(job.a, job.film["id"])
    folder = bert()
    weights = (folder / WEIGHTS).read_bytes()
    upload = Uploading.open(first, job.a)
    for path in folder.iterdir():
        if path.name != WEIGHTS:
            upload.put(path.name, path.read_bytes()).raise_for_status()
    agent = chat.agent(config={"max_tokens": TOKENS})
    with contextlib.ExitStack() as stack:
        # No job ends before the test sees it at work. Then all work stays halted until the end of
        # the block.
        halts = [stack.enter_context(one.slowed()) for one in (chat, film)]
        half = len(weights) // 2
        stack.enter_context(upload.beginning(WEIGHTS, len(weights), weights[:half]))
        streaming = Streaming(job.a, "chat")
        assert streaming.begun.wait(PATIENCE_S)
        run = chat.run(agent, COUNT)
        seen_events = begun(chat, run, "message.delta")
        videos = [
            job.a.post("/v1/videos", json=body).raise_for_status().json()["id"]
            for body in (LONG, FILM)
        ]
        until(lambda: state(job.a, videos[0])["status"] == "in_progress", PATIENCE_S)
        for halt in halts:
            halt()
        job = joined(job)
        assert state(job.b, videos[0])["status"] == "in_progress"
        assert Account(job.b, "").get(run)["status"] == "in_progress"
        first.kill()
    streaming.ended()
    assert streaming.lines[-1:] != ["data: [DONE]"]

    # The upload resumes after the acknowledged bytes.
    upload = replace(upload, server=job.fleet.gateways[1], client=job.b)
    offset = upload.offset(WEIGHTS)
    assert 0 <= offset <= half
    headers = sent_range(offset, len(weights), len(weights))
    upload.put(WEIGHTS, weights[offset:], **headers).raise_for_status()
    artifact = upload.complete().raise_for_status().json()["artifact"]
    assert artifact["status"] == "ready", artifact
    body = {"model": "tagger", "artifact_id": artifact["id"]}
    tagger = job.b.post("/v1/deployments", json=body).raise_for_status().json()
    assert call(job.b, "tagger", wait=60).status_code == 200

    # The run continues.
    account = Account(job.b, job.chat["id"])
    messages = [{"role": "user", "content": COUNT}]
    same = account.post(
        "/v1/chat/completions", 200, model="chat", messages=messages, max_tokens=TOKENS
    )
    check_resumed(account, run, seen_events, same["choices"][0]["message"]["content"])

    # Each video completes once and is whole.
    for identifier in videos:
        until(lambda one=identifier: state(job.b, one)["status"] == "completed", PATIENCE_S)
        content = job.b.get(f"/v1/videos/{identifier}/content").raise_for_status().content
        assert decoded(content) == (9, 64, 32, 25.0, "h264")

    # No work is outstanding, and usage is correct: repeated work is charged once.
    until(lambda: all(outstanding(job.b, one) == 0 for one in (job.chat, job.film)), PATIENCE_S)
    report = closed([job.b], (job.chat, job.film, tagger))
    [row] = [one for one in report["data"] if one["model"] == "film"]
    assert (row["requests"], row["errors"]) == (len(videos), 0)
    seconds = [float(state(job.b, one)["seconds"]) for one in videos]
    assert row["video_ms"] == sum(round(1000 * one) for one in seconds)


def state(client: httpx.Client, video: str) -> dict[str, Any]:
    return client.get(f"/v1/videos/{video}").raise_for_status().json()


def outstanding(client: httpx.Client, deployment: dict[str, Any]) -> int:
    return Account(client, deployment["id"]).outstanding()
