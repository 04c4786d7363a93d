"""A trace collector that receives OTLP over HTTP on loopback."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Collector of exported traces."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def env(self) -> dict[str, str]:
        """Settings of a server that exports to this collector twenty times a second."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "NO_PROXY": "127.0.0.1",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, trace_id: str) -> dict[str, Span]:
        """Returns the spans of a trace received so far, by name."""
        return {
            span.name: span
            for body in list(self.bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.trace_id.hex() == trace_id
        }

    def wait_for(self, trace_id: str, name: str) -> dict[str, Span]:
        deadline = time.monotonic() + 20
        while name not in (spans := self.spans(trace_id)):
            assert time.monotonic() < deadline, sorted(spans)
            time.sleep(0.02)
        return spans


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()
