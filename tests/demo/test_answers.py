"""Every operation is called successfully. The test client compares each answer with the OpenAPI
document.
"""

import json
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import httpx
import jsonschema
import pytest

from stoker.demo.examples import EXAMPLES, MEDIA_CALLS, ExampleRequest
from stoker.models.tasks.registry import TASKS
from stoker.platform.web.cors import EXPOSED
from tests.demo.conftest import HUB_MODEL
from tests.demo.test_demo import ROOT
from tests.deployments.support import bert
from tests.support import contract
from tests.support.contract import Operation, operations
from tests.support.deploying import push
from tests.support.server import Server
from tools.fuzz.__main__ import OF_OTHER_SERVERS
from tools.stand_ins.model_hub import ModelHub

MEDIA = ROOT / "stoker" / "demo" / "media"
READABLE = {"cache-control", "content-length", "content-type", "last-modified"}
"""Headers that browsers always let scripts read (Fetch, "CORS-safelisted response-header name")."""
NOT_FOR_SCRIPTS = {
    "connection",
    "content-security-policy",
    "date",
    "set-cookie",
    "transfer-encoding",
    "x-accel-buffering",
    "x-content-type-options",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
QUESTION = "What is the weather in Paris?"


@pytest.fixture(scope="module")
def owner(demo: Server, state: Any) -> Iterator[httpx.Client]:
    """Returns a client of the demo's account, which owns the demo's models."""
    with demo.client(state["account_key"]) as client:
        yield client


@pytest.fixture(scope="module")
def operator(demo: Server) -> Iterator[httpx.Client]:
    with demo.client(demo.operator_key) as client:
        yield client


@pytest.fixture(scope="module")
def walked(
    demo: Server, owner: httpx.Client, operator: httpx.Client, hub: ModelHub
) -> set[Operation]:
    """Calls every operation. Returns the operations that answered with success."""
    for name, task in TASKS.items():
        for path in task.paths:
            ask(owner, path, EXAMPLES[name])
    # An empty list is both the result of one text without entities and an empty list of results.
    empty = {"model": EXAMPLES["token-classification"].model, "inputs": ""}
    assert good(owner.post(TASKS["token-classification"].path, json=empty)) == []
    for path, example in MEDIA_CALLS.items():
        ask(owner, path, example)
    generate(owner)
    answer_as_other_servers(owner)
    store(owner)
    make(owner)
    run_batch(owner)
    with demo.account("answers") as client:
        import_model(client, hub)
        manage(client, operator)
    run_agent(owner)
    report(owner, operator)
    watch(owner)
    with demo.client() as browser:
        sign_in(browser, owner)
    return {operation for (operation, status) in contract.answered if status < 300}


def good(response: httpx.Response) -> Any:
    assert response.status_code < 300, response.text
    return response.json() if response.headers.get("content-type") == "application/json" else None


def ask(client: httpx.Client, path: str, example: ExampleRequest) -> Any:
    """Sends an example's call as the docs show it."""
    body = {"model": example.model, **example.body}
    if not example.files:
        return good(client.post(path, json=body))
    files = {field: (name, (MEDIA / name).read_bytes()) for field, name in example.files.items()}
    fields = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()
    }
    return good(client.post(path, files=files, data=fields))


def generate(client: httpx.Client) -> None:
    """Generates texts and embeddings in all forms of answers."""
    messages = [{"role": "user", "content": QUESTION}]
    chat = {"model": "tiny-chat", "messages": messages, "logprobs": True, "top_logprobs": 2}
    for more in ({}, {"tools": [WEATHER]}, {"n": 2, "max_tokens": 3}):
        good(client.post("/v1/chat/completions", json=chat | more))
    text = {"model": "tiny-chat", "prompt": ["a", "b"], "max_tokens": 4, "logprobs": 1}
    good(client.post("/v1/completions", json=text))
    flat = {"type": "function", **WEATHER["function"]}
    for more in ({}, {"tools": [flat]}, {"max_output_tokens": 16}):
        body = {"model": "tiny-chat", "input": QUESTION, **more}
        good(client.post("/v1/responses", json=body))
    good(client.post("/v1/responses/input_tokens", json={"model": "tiny-chat", "input": QUESTION}))
    count = {"model": "tiny-chat", "messages": messages}
    good(client.post("/v1/messages/count_tokens", json=count))
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    for more in ({"max_tokens": 16}, {"max_tokens": 64, "tools": [tool]}):
        good(client.post("/v1/messages", json=count | more))
    batch = {"model": "tiny-encoder", "input": ["a", "b"], "encoding_format": "base64"}
    good(client.post("/v1/embeddings", json=batch))


def answer_as_other_servers(client: httpx.Client) -> None:
    """Calls the endpoints of Text Embeddings Inference and vLLM, in all forms."""
    for path, calls in OF_OTHER_SERVERS.items():
        for model, body in calls:
            good(client.post(path, json={"model": model, **body}))
    for name in ("tiny-encoder", "tiny-reranker", "tiny-sentiment"):
        assert good(client.get("/info", params={"model": name}))["model_id"] == name


def store(client: httpx.Client) -> None:
    """Stores and compacts responses."""
    body = {"model": "tiny-chat", "input": QUESTION}
    hosted = {"tools": [{"type": "web_search"}], "service_tier": "flex"}
    made = good(client.post("/v1/responses", json={**body, **hosted, "store": True}))
    stored = f"/v1/responses/{made['id']}"
    assert good(client.get(stored))["output"] == made["output"]
    assert len(good(client.get(f"{stored}/input_items"))["data"]) == 1
    good(client.delete(stored))
    waiting = good(client.post("/v1/responses", json={**body, "store": True, "background": True}))
    background = f"/v1/responses/{waiting['id']}"
    good(client.post(f"{background}/cancel"))
    client.get(background, params={"stream": True}).raise_for_status()
    good(client.post("/v1/responses/compact", json=body))


def run_batch(client: httpx.Client) -> None:
    """Uploads files, whole and in parts, and runs one as a batch."""
    body = {"model": "tiny-encoder", "input": "a"}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": body}
    content = json.dumps(line).encode()
    files = {"file": ("a.jsonl", content)}
    file = good(client.post("/v1/files", files=files, data={"purpose": "batch"}))
    details = {
        "filename": "b",
        "purpose": "batch",
        "bytes": len(content),
        "mime_type": "text/plain",
    }
    first, second = (good(client.post("/v1/uploads", json=details))["id"] for _ in range(2))
    upload = f"/v1/uploads/{first}"
    part = good(client.post(f"{upload}/parts", files={"data": ("x", content)}))["id"]
    good(client.get(upload))
    good(client.post(f"{upload}/complete", json={"part_ids": [part]}))
    good(client.post(f"/v1/uploads/{second}/cancel"))
    wish = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = f"/v1/batches/{good(client.post('/v1/batches', json=wish))['id']}"
    deadline = time.monotonic() + 120
    while (found := good(client.get(batch)))["status"] != "completed":
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    answered = client.get(f"/v1/files/{found['output_file_id']}/content").raise_for_status().json()
    assert answered["response"]["status_code"] == 200
    other = f"/v1/batches/{good(client.post('/v1/batches', json=wish))['id']}"
    good(client.post(f"{other}/cancel"))
    good(client.get("/v1/batches"))


def make(client: httpx.Client) -> None:
    """Generates media and manages the resulting files."""
    body = {"model": "tiny-draw", "prompt": "a red circle", "num_inference_steps": 2}
    good(client.post("/v1/images/generations", json=body | {"response_format": "b64_json"}))
    for form in ("wav", "flac", "opus", "aac", "pcm"):
        text = {"model": "random-speech", "input": "Hello there.", "response_format": form}
        good(client.post("/v1/audio/speech", json=text))
    sound = {"file": ("a.wav", (MEDIA / "seven-three-one.wav").read_bytes())}
    for form in ("text", "srt", "vtt", "verbose_json"):
        fields = {"model": "tiny-transcriber", "response_format": form}
        good(client.post("/v1/audio/transcriptions", files=sound, data=fields))
    wish = {"model": "random-video-maker", "prompt": "a boat", "num_inference_steps": 1}
    video = f"/v1/videos/{good(client.post('/v1/videos', json=wish))['id']}"
    deadline = time.monotonic() + 120
    while good(client.get(video))["status"] != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for variant in ("video", "thumbnail"):
        client.get(f"{video}/content", params={"variant": variant})
    client.get(f"{video}/content", headers={"range": "bytes=0-9"})
    good(client.get("/v1/videos"))
    good(client.delete(video))
    file = f"/v1/files/{good(client.get('/v1/files'))['data'][0]['id']}"
    good(client.get(file))
    client.get(f"{file}/content")
    good(client.delete(file))


def import_model(client: httpx.Client, hub: ModelHub) -> None:
    """Starts an import that takes long enough to be cancelled, and cancels it."""
    made = good(client.post("/v1/model-artifacts", json={"display_name": "imported"}))
    artifact = f"/v1/model-artifacts/{made['id']}"
    with mock.patch.object(hub, "pace_s", 0.5):
        begun = good(client.post(f"{artifact}/imports", json={"repo_id": HUB_MODEL}))["artifact"]
        assert good(client.get(artifact))["import"]["bytes_total"] > 0
        good(client.delete(f"{artifact}/imports/{begun['import']['id']}"))
    good(client.delete(artifact))


def manage(client: httpx.Client, operator: httpx.Client) -> None:
    """Manages accounts, artifacts, deployments and keys."""
    account = good(operator.post("/v1/accounts", json={"name": "more"}))["id"]
    good(operator.get("/v1/accounts"))
    good(operator.get(f"/v1/accounts/{account}"))
    good(operator.patch(f"/v1/accounts/{account}", json={"quotas": {"agents": 5}}))
    good(client.get("/v1/quotas"))
    grant = {"amount_microcredits": 1_000_000, "note": "November"}
    good(operator.post(f"/v1/accounts/{account}/credits", json=grant))
    good(operator.delete(f"/v1/accounts/{account}"))

    model = push(client, bert())
    artifact = f"/v1/model-artifacts/{model['id']}"
    good(client.patch(artifact, json={"display_name": "renamed"}))
    good(client.get(artifact))
    good(client.get("/v1/model-artifacts"))
    empty = good(client.post("/v1/model-artifacts", json={"display_name": "empty"}))
    uploads = f"/v1/model-artifacts/{empty['id']}/uploads"
    session = f"{uploads}/{good(client.post(uploads))['upload_id']}"
    good(client.put(f"{session}/files/config.json", content=b"{}"))
    good(client.put(f"{session}/files/weights.bin/parts/1", content=b"x"))
    good(client.head(f"{session}/files/config.json"))
    good(client.get(session))
    good(client.delete(f"{session}/files/config.json"))
    good(client.delete(session))
    good(client.delete(f"/v1/model-artifacts/{empty['id']}"))

    wish = {"model": "tagger", "artifact_id": model["id"], "readiness": "warm"}
    made = good(client.post("/v1/deployments", json=wish))
    deployment = f"/v1/deployments/{made['id']}"
    good(client.post("/v1/classifications/token", json={"inputs": "Clara"}))
    good(client.get("/v1/models"))
    good(client.get("/v1/models/tagger"))
    good(client.get("/v1/deployments"))
    good(client.get(deployment))
    good(client.patch(deployment, json={"max_queue": 7}))
    versions = f"{deployment}/versions"
    newer = f"{versions}/{good(client.post(versions, json={'dtype': 'float32'}))['id']}"
    deadline = time.monotonic() + 120
    while good(client.get(newer))["status"] != "live":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert [check["number"] for check in good(client.get(versions))["data"]] == [2, 1]
    good(client.post(f"{deployment}/rollback", json={}))
    good(client.post(f"{newer}/promote"))
    assert good(client.get(f"{newer}/comparison"))["compared"] == 0
    share = good(client.get(newer))["id"]
    good(client.put(f"{deployment}/traffic", json={"weights": {share: 100}}))
    first = good(client.get(versions))["data"][1]["id"]
    good(client.delete(f"{versions}/{first}"))
    check = {"name": "a name", "request": {"inputs": "Clara"}, "expect": {"contains": "C"}}
    good(client.put(f"{deployment}/checks", json={"checks": [check]}))
    assert good(client.post(f"{deployment}/checks/run"))["results"]
    assert good(client.get(f"{deployment}/checks"))["report"]
    trials = f"{deployment}/trials"
    body = {"engines": ["torch"], "dtypes": ["float32"]}
    trial = f"{trials}/{good(client.post(trials, json=body))['id']}"
    deadline = time.monotonic() + 120
    while good(client.get(trial))["status"] != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    good(client.get(trials))
    good(client.get(f"{deployment}/logs"))
    good(client.get(f"{deployment}/events"))
    good(client.post(f"{deployment}/stop"))
    stopped = client.post("/v1/classifications/token", json={"inputs": "Clara"})
    assert stopped.json()["error"]["code"] == "deployment_stopped"
    good(client.post(f"{deployment}/start"))

    scope = {"scope": "deployment", "deployment_ids": [made["id"]], "name": "mine"}
    limits = {"requests_per_minute": 60}
    key = f"/v1/api-keys/{good(client.post('/v1/api-keys', json=scope | limits))['id']}"
    good(client.get(key))
    good(client.get("/v1/api-keys"))
    good(client.patch(key, json={"may_prioritize": True}))
    good(client.post(f"{key}/rotate", json={"grace_s": 1}))
    good(client.delete(key))
    good(client.delete(deployment))
    good(client.delete(artifact))


def run_agent(client: httpx.Client) -> None:
    wish = {"name": "answers", "model": "tiny-chat", "tools": [WEATHER]}
    agent = f"/v1/agent/{good(client.post('/v1/agent', json=wish))['id']}"
    good(client.get(agent))
    good(client.get("/v1/agent"))
    good(client.patch(agent, json={"instructions": "Be brief.", "config": {"temperature": 0}}))
    good(client.patch(agent, json={"instructions": None}))
    run = f"{agent}/runs/{good(client.post(f'{agent}/runs', json={'input': QUESTION}))['id']}"
    waiting = settled(client, run)
    assert waiting["status"] == "requires_action", waiting
    outputs = [
        {"tool_call_id": call["id"], "output": '{"temperature": 21, "condition": "sunny"}'}
        for call in waiting["required_action"]["tool_calls"]
    ]
    good(client.post(f"{run}/tool-outputs", json={"tool_outputs": outputs}))
    assert settled(client, run)["status"] == "completed"
    good(client.get(f"{run}/events"))
    good(client.get(f"{agent}/runs"))
    good(client.delete(run))
    other = f"{agent}/runs/{good(client.post(f'{agent}/runs', json={'input': QUESTION}))['id']}"
    settled(client, other)
    good(client.post(f"{other}/cancel"))
    good(client.delete(agent))


def settled(client: httpx.Client, run: str) -> Any:
    deadline = time.monotonic() + 60
    while (current := good(client.get(run)))["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return current


def report(client: httpx.Client, operator: httpx.Client) -> None:
    for group in ("deployment", "version", "day", "hour"):
        good(client.get("/v1/usage", params={"group_by": group}))
    client.get("/v1/usage", params={"format": "csv"})
    good(client.get("/v1/usage/events"))
    good(client.get("/v1/credits"))
    good(client.get("/v1/credits/transfers"))
    good(client.get("/v1/prices"))
    prices = {"memory_microcredits_per_gib_hour": 1, "storage_microcredits_per_gib_month": 1}
    good(operator.post("/v1/prices", json=prices))
    good(operator.get("/v1/nodes"))
    for path in ("/health", "/ready", "/metrics"):
        operator.get(path).raise_for_status()


def watch(client: httpx.Client) -> None:
    deployment = good(client.get("/v1/deployments"))["data"][0]
    good(client.get(f"/v1/deployments/{deployment['id']}/metrics"))
    good(client.get("/v1/machine"))
    card = client.get(f"/v1/model-artifacts/{deployment['artifact_id']}/card")
    assert card.raise_for_status().text
    with client.stream("GET", "/v1/events") as events:
        contract.check(events)
        assert next(events.iter_lines()) == "event: hello"


def sign_in(browser: httpx.Client, owner: httpx.Client) -> None:
    """Signs in by a link that a key created, as `stoker open` does."""
    link = good(owner.post("/v1/console/links"))["url"].partition("#link=")[2]
    signed_in = good(browser.post("/console/session", json={"link": link}))
    assert good(browser.get("/console/session")) == signed_in
    out = browser.delete("/console/session", headers={"x-csrf-token": signed_in["csrf"]})
    assert out.status_code == 204
    assert browser.get("/console/session").status_code == 401


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_success_is_as_documented(walked: set[Operation], operation: Operation) -> None:
    assert operation in walked


def test_scripts_of_pages_may_read_every_header(walked: set[Operation]) -> None:
    assert "content-range" in contract.headers
    assert contract.headers - READABLE - NOT_FOR_SCRIPTS <= set(EXPOSED)


class TestTheCheck:
    """The check detects answers that differ from the document."""

    @pytest.mark.parametrize(
        ("status", "body", "says"),
        [
            (418, {}, "not documented"),
            (200, {"object": "list"}, "'data' is a required property"),
            (200, {"object": "list", "data": [], "more": 1}, "'more' was unexpected"),
            (200, {"object": "list", "data": [7]}, "['data'][0]"),
            (410, {"detail": "Not Found"}, "not documented"),
            (401, {"error": {"type": "X", "code": None, "message": ""}}, "['error']['code']"),
        ],
    )
    def test_json(self, status: int, body: Any, says: str) -> None:
        request = httpx.Request("GET", "http://x/v1/models")
        with pytest.raises(AssertionError, match="GET /v1/models answered") as caught:
            contract.check(httpx.Response(status, json=body, request=request))
        assert says in str(caught.value)

    def test_another_type(self) -> None:
        request = httpx.Request("GET", "http://x/v1/models")
        with pytest.raises(AssertionError, match="text/plain"):
            contract.check(httpx.Response(200, text="[]", request=request))

    def test_the_document_is_one(self) -> None:
        for name, schema in contract.document()["components"]["schemas"].items():
            assert jsonschema.Draft202012Validator.check_schema(schema) is None, name
