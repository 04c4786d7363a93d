"""Traces as a collector receives them: OTLP over HTTP, from a real server with a real model."""

import itertools
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

import stoker.demo
from stoker.base.extras import install_command
from stoker.server.telemetry import traces
from tests.deployments.support import TOKENS, bert, call
from tests.support.deploying import deploy
from tests.support.raw import connect
from tests.support.server import Server, running
from tests.support.tracing import Collector
from tests.support.workers import (
    BY_SERVER,
    key_of,
    request_of,
    wait_for_workers,
    worker_processes,
)

MODELS = Path(stoker.demo.__file__).parent / "models"
PARENT = "00f067aa0ba902b7"
CANARY = "clarissa the secret keeper"


@pytest.fixture(scope="module")
def traced_workers(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with workers and traces. A test ends its workers."""
    folder = tmp_path_factory.mktemp("traced_workers") / "data"
    with running(folder, STOKER_WORKERS="2", **collector.env) as server:
        server.wait_ready()
        wait_for_workers(server)
        yield server


@pytest.fixture(scope="module", params=["traced_server", "traced_workers"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("traced") as client:
        deploy(client, bert(), "tagger")
        yield client


def new_trace_id() -> str:
    return uuid.uuid4().hex


def parent_of(trace_id: str, *, sampled: bool = True) -> str:
    """Returns the header `traceparent` of a caller's span."""
    return f"00-{trace_id}-{PARENT}-0{int(sampled)}"


def asked(client: httpx.Client, trace_id: str, sampled: bool = True, **body: object):
    client.headers["traceparent"] = parent_of(trace_id, sampled=sampled)
    try:
        return call(client, "tagger", **body)
    finally:
        del client.headers["traceparent"]


def attributes(span: Span) -> dict[str, object]:
    return {
        attribute.key: getattr(attribute.value, str(attribute.value.WhichOneof("value")))
        for attribute in span.attributes
    }


def test_a_cold_call_shows_where_its_time_went(collector: Collector, client: httpx.Client):
    trace_id = new_trace_id()
    response = asked(client, trace_id, inputs=CANARY).raise_for_status()
    spans = collector.wait_for(trace_id, "POST /v1/classifications/token")
    request = spans["POST /v1/classifications/token"]
    assert request.kind == Span.SPAN_KIND_SERVER
    assert request.parent_span_id.hex() == PARENT
    assert attributes(request) == {
        "http.route": "/v1/classifications/token",
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "stoker.request_id": response.headers["x-request-id"],
    }
    wait, replica = spans["wait for replica"], spans["replica"]
    assert wait.parent_span_id == replica.parent_span_id == request.span_id
    assert wait.end_time_unix_nano - wait.start_time_unix_nano > 10_000_000, "it had to load"
    assert wait.end_time_unix_nano == replica.start_time_unix_nano
    assert attributes(replica)["gen_ai.request.model"] == "tagger"
    assert attributes(replica)["stoker.outcome"] == "ok"
    phases = [spans[name] for name in ("prepare", "queue", "forward", "finish")]
    assert {phase.parent_span_id for phase in phases} == {replica.span_id}
    for before, after in itertools.pairwise(phases):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert phases[0].start_time_unix_nano >= replica.start_time_unix_nano
    assert phases[-1].end_time_unix_nano <= replica.end_time_unix_nano
    forward = phases[2].end_time_unix_nano - phases[2].start_time_unix_nano
    assert 0 < forward < replica.end_time_unix_nano - replica.start_time_unix_nano


def test_a_warm_call_waits_for_nothing(collector: Collector, client: httpx.Client):
    trace_id = new_trace_id()
    # The first call may load the model.
    for each in (new_trace_id(), trace_id):
        asked(client, each).raise_for_status()
    spans = collector.wait_for(trace_id, "POST /v1/classifications/token")
    assert "replica" in spans and "wait for replica" not in spans


def test_a_refused_call_is_an_error_of_the_replica(collector: Collector, client: httpx.Client):
    trace_id = new_trace_id()
    assert asked(client, trace_id, inputs="word " * 5000).status_code == 400
    spans = collector.wait_for(trace_id, "POST /v1/classifications/token")
    assert spans["replica"].status.code == Status.STATUS_CODE_ERROR
    assert spans["replica"].status.message == "invalid_request"
    request = spans["POST /v1/classifications/token"]
    assert request.status.code == Status.STATUS_CODE_UNSET, "the caller's mistake is not ours"


def test_what_the_caller_does_not_sample_is_not_sent(collector: Collector, client: httpx.Client):
    unsampled, sampled = new_trace_id(), new_trace_id()
    asked(client, unsampled, sampled=False).raise_for_status()
    asked(client, sampled).raise_for_status()
    collector.wait_for(sampled, "POST /v1/classifications/token")
    assert collector.spans(unsampled) == {}


def test_no_content_and_no_key_is_sent(collector: Collector, server: Server, client: httpx.Client):
    client.get("/v1/deployments/dep_private?name=private")
    server.stop()
    sent = b"".join(collector.bodies)
    # Other tests use the server, too.
    server.restart()
    key = client.headers["authorization"].removeprefix("Bearer ")
    secrets = (
        CANARY,
        key,
        key.split("-", 2)[1],
        server.operator_key,
        "dep_private",
        "private",
    )
    assert [secret for secret in secrets if secret.encode() in sent] == []
    assert b"GET /v1/deployments/{deployment_id}" in sent, "stopping sends what is left"
    assert b"service.name" in sent and b"stoker" in sent


Request = tuple[str, dict[str, object]]
Shape = dict[str, tuple[object, ...]]
CALL: Request = TOKENS, {"model": "tagger", "inputs": "clara"}
TALK: Request = (
    "/v1/chat/completions",
    {
        "model": "tiny-chat",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "ignore_eos": True,
    },
)
STREAM: Request = TALK[0], {**TALK[1], "stream": True}
LONG: Request = TALK[0], {**STREAM[1], "max_tokens": 900}
UNKNOWN_FIELD: Request = CALL[0], {**CALL[1], "unknown": 1}
NO_MODEL: Request = CALL[0], {**CALL[1], "model": "none"}


def shape(collector: Collector, trace_id: str, *names: str) -> Shape:
    """Returns all of a trace that does not change from call to call."""
    spans: dict[str, Span] = {}
    for name in names:
        spans = collector.wait_for(trace_id, name)
    # A busy machine may delay a ready replica.
    spans.pop("wait for replica", None)
    by_id = {span.span_id: name for name, span in spans.items()}
    return {
        name: (
            by_id.get(span.parent_span_id, span.parent_span_id.hex()),
            span.kind,
            span.status.code,
            span.status.message,
            {
                key: None if key.startswith("gen_ai.usage") else value
                for key, value in attributes(span).items()
                if key != "stoker.request_id"
            },
        )
        for name, span in spans.items()
    }


@pytest.fixture(scope="module")
def compared(traced_workers: Server) -> Iterator[httpx.Client]:
    with traced_workers.account("compared") as client:
        deploy(client, bert(), "tagger")
        deploy(client, MODELS / "tiny-chat", "tiny-chat")
        for path, body in (CALL, TALK):
            client.post(path, json=body).raise_for_status()
        yield client


class TestWorkers:
    """Workers cause the same spans as the server."""

    def limited(self, server: Server, client: httpx.Client) -> str:
        """Returns a key whose limit is reached."""
        body = {
            "scope": "account",
            "account_id": client.account_id,  # type: ignore[attr-defined]
            "requests_per_minute": 1,
        }
        with server.client(server.operator_key) as operator:
            key = operator.post("/v1/api-keys", json=body).raise_for_status().json()["key"]
        self.send(server, key, CALL)
        return key

    def revoked(self, server: Server, client: httpx.Client) -> str:
        """Returns a revoked key that workers still know."""
        created = client.post("/v1/api-keys", json={"scope": "account"}).raise_for_status().json()
        for _ in range(4):
            self.send(server, created["key"], CALL)
        client.delete(f"/v1/api-keys/{created['id']}").raise_for_status()
        return created["key"]

    def send(self, server: Server, key: str, request: Request, **headers: str) -> int:
        """Sends a request on a new connection. Returns the status."""
        path, body = request
        with server.client(key) as client:
            return client.post(path, json=body, headers=headers).status_code

    @pytest.mark.parametrize(
        ("request_", "status"),
        [(CALL, 200), (TALK, 200), (STREAM, 200), (UNKNOWN_FIELD, 400), (NO_MODEL, 404)],
        ids=["call", "talk", "stream", "unknown field", "no model"],
    )
    def test_answers(
        self,
        collector: Collector,
        traced_workers: Server,
        compared: httpx.Client,
        request_: Request,
        status: int,
    ):
        self.compare(collector, traced_workers, key_of(compared), request_, status)

    @pytest.mark.parametrize("request_", [CALL, UNKNOWN_FIELD], ids=["call", "unknown field"])
    def test_refused_keys(
        self,
        collector: Collector,
        traced_workers: Server,
        compared: httpx.Client,
        request_: Request,
    ):
        limited = self.limited(traced_workers, compared)
        self.compare(collector, traced_workers, limited, request_, 429)
        revoked = self.revoked(traced_workers, compared)
        self.compare(collector, traced_workers, revoked, request_, 401)
        self.compare(collector, traced_workers, "sk-unknown-key", request_, 401)

    def compare(
        self, collector: Collector, server: Server, key: str, request: Request, status: int
    ) -> None:
        shapes: list[Shape] = []
        for headers in (BY_SERVER, {}):
            trace_id = new_trace_id()
            parent = parent_of(trace_id)
            assert self.send(server, key, request, traceparent=parent, **headers) == status
            names = ["replica"] if status == 200 else []
            shapes.append(shape(collector, trace_id, *names, f"POST {request[0]}"))
        by_server, by_worker = shapes
        assert by_worker == by_server
        assert by_server[f"POST {request[0]}"][0] == PARENT

    @pytest.mark.parametrize(
        ("request_", "events", "names"),
        [(LONG, 3, ["replica"]), (CALL, 0, [])],
        ids=["answer", "body"],
    )
    def test_disconnects(
        self,
        collector: Collector,
        traced_workers: Server,
        compared: httpx.Client,
        request_: Request,
        events: int,
        names: list[str],
    ):
        """The client disconnects while it reads the answer, or before it has sent the body.

        Usage is known from the first token on, which follows the event with the role.
        """
        path, body = request_
        shapes: list[Shape] = []
        for headers in (BY_SERVER, {}):
            trace_id = new_trace_id()
            parent = parent_of(trace_id)
            sent = request_of(key_of(compared), path, body, traceparent=parent, **headers)
            with connect(traced_workers) as connection:
                connection.sendall(sent if events else sent[:-1])
                received = b""
                while received.count(b"data: ") < events:
                    part = connection.recv(100)
                    assert part, received
                    received += part
                assert not events or received.startswith(b"HTTP/1.1 200 OK")
            shapes.append(shape(collector, trace_id, *names, f"POST {path}"))
        assert shapes[1] == shapes[0]

    def test_killed_workers(
        self, collector: Collector, traced_workers: Server, compared: httpx.Client
    ):
        trace_id, (path, body) = new_trace_id(), LONG
        sent = request_of(key_of(compared), path, body, traceparent=parent_of(trace_id))
        with connect(traced_workers) as connection:
            connection.sendall(sent)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
            for worker in worker_processes(traced_workers):
                worker.kill()
            spans = collector.wait_for(trace_id, "replica")
            spans = collector.wait_for(trace_id, f"POST {path}")
        request = spans[f"POST {path}"]
        assert request.status.code == Status.STATUS_CODE_ERROR
        assert attributes(request)["http.response.status_code"] == 0
        assert spans["replica"].parent_span_id == request.span_id
        assert attributes(spans["replica"])["stoker.outcome"] == "cancelled"
        wait_for_workers(traced_workers)


class TestWithout:
    @pytest.fixture(autouse=True)
    def no_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (*traces.ENDPOINTS, "OTEL_SDK_DISABLED"):
            monkeypatch.delenv(name, raising=False)

    def test_an_endpoint(self):
        assert traces.from_environment() is None

    def test_the_extra(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
        monkeypatch.setitem(sys.modules, name, None)
        assert traces.from_environment() is None
        assert install_command("otel") in caplog.text

    def test_the_permission(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        assert traces.from_environment() is None


def test_the_gateway_does_not_import_the_libraries_unasked(tmp_path: Path) -> None:
    script = (
        "import sys, stoker.server.app; print([m for m in sys.modules if 'opentelemetry.sdk' in m])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert completed.stdout.strip() == "[]"
