"""Traces as a collector receives them: OTLP over HTTP, from a real server with a real model."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from stoker.base.extras import install_command
from stoker.server.telemetry import traces
from tests.deployments.support import bert, call
from tests.support.deploying import deploy
from tests.support.server import Server
from tests.support.tracing import Collector

PARENT = "00f067aa0ba902b7"
CANARY = "clarissa the secret keeper"


@pytest.fixture(scope="module")
def client(traced_server: Server) -> Iterator[httpx.Client]:
    with traced_server.account("traced") as client:
        deploy(client, bert(), "tagger")
        yield client


def asked(client: httpx.Client, trace_id: str, sampled: bool = True, **body: object):
    client.headers["traceparent"] = f"00-{trace_id}-{PARENT}-0{int(sampled)}"
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
    trace_id = "1" * 32
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
    trace_id = "2" * 32
    asked(client, trace_id).raise_for_status()
    spans = collector.wait_for(trace_id, "POST /v1/classifications/token")
    assert "replica" in spans and "wait for replica" not in spans


def test_a_refused_call_is_an_error_of_the_replica(collector: Collector, client: httpx.Client):
    trace_id = "3" * 32
    assert asked(client, trace_id, inputs="word " * 5000).status_code == 400
    spans = collector.wait_for(trace_id, "POST /v1/classifications/token")
    assert spans["replica"].status.code == Status.STATUS_CODE_ERROR
    assert spans["replica"].status.message == "invalid_request"
    request = spans["POST /v1/classifications/token"]
    assert request.status.code == Status.STATUS_CODE_UNSET, "the caller's mistake is not ours"


def test_what_the_caller_does_not_sample_is_not_sent(collector: Collector, client: httpx.Client):
    asked(client, "4" * 32, sampled=False).raise_for_status()
    asked(client, "5" * 32).raise_for_status()
    collector.wait_for("5" * 32, "POST /v1/classifications/token")
    assert collector.spans("4" * 32) == {}


def test_no_content_and_no_key_is_sent(
    collector: Collector, traced_server: Server, client: httpx.Client
):
    client.get("/v1/deployments/dep_private?name=private")
    traced_server.stop()
    sent = b"".join(collector.bodies)
    # Other test files use the server, too.
    traced_server.restart()
    key = client.headers["authorization"].removeprefix("Bearer ")
    secrets = (
        CANARY,
        key,
        key.split("-", 2)[1],
        traced_server.operator_key,
        "dep_private",
        "private",
    )
    assert [secret for secret in secrets if secret.encode() in sent] == []
    assert b"GET /v1/deployments/{deployment_id}" in sent, "stopping sends what is left"
    assert b"service.name" in sent and b"stoker" in sent


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
