"""Traces in OpenTelemetry's terms, sent by OTLP: requests, their waits, and the phases in replicas.

OpenTelemetry's own environment variables configure them. The gateway creates all spans. A replica
has no network and returns the duration of each phase with its response.
"""

import logging
import os
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

import stoker
from stoker.base.extras import install_command
from stoker.runtime.listening import CANCELLED, OK, RuntimeListener, Served

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PARENT_HEADERS = ("traceparent", "tracestate")
"""Headers of a request that name the caller's span."""
SHORTEST_WAIT_S = 0.001
"""Minimum wait in seconds that gets a span. After a shorter wait a replica was ready."""
_SECOND_NS = 1_000_000_000


def is_enabled() -> bool:
    """Returns True if an endpoint is set and traces are not disabled."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(os.environ.get(name) for name in ENDPOINTS)


def from_environment() -> "Traces | None":
    """Returns the traces if an endpoint is set and the libraries are installed."""
    if not is_enabled():
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("tracing is off: install the extra, %s", install_command("otel"))
        return None
    named = {SERVICE_VERSION: stoker.__version__}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        named[SERVICE_NAME] = "stoker"
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


@dataclass
class Answered:
    """Result of an HTTP request, for its span."""

    route: str | None = None
    status: int = 0


class Traces(RuntimeListener):
    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("stoker", stoker.__version__)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    @contextmanager
    def request(self, scope: Scope, request_id: str) -> Generator[Answered]:
        """Opens a span around an HTTP request."""
        answered, headers = Answered(), Headers(scope=scope)
        span = self.open(str(scope["method"]), headers, request_id)
        with span.as_parent():
            try:
                yield answered
            finally:
                span.end(answered.route, answered.status)

    def open(
        self,
        method: str,
        headers: Mapping[str, str],
        request_id: str,
        start_ns: int | None = None,
    ) -> "RequestSpan":
        """Opens the span of an HTTP request, as a child of the caller's span if the headers have a
        `traceparent`.

        Args:
            start_ns: time of the request by `time.time_ns`. None means now.
        """
        carrier = {name: headers[name] for name in PARENT_HEADERS if name in headers}
        span = self._tracer.start_span(
            method,
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            start_time=start_ns,
        )
        return RequestSpan(span, method, request_id)

    def served(self, call: Served) -> None:
        # The listener runs in the context of the request that made the call, so its span is known.
        current = self._trace.get_current_span().get_span_context()
        if current.is_valid and not current.trace_flags.sampled:
            return
        end = time.time_ns()
        replica_start = end - int(call.seconds * _SECOND_NS)
        if call.waited_s >= SHORTEST_WAIT_S:
            wait = self._tracer.start_span(
                "wait for replica",
                start_time=replica_start - int(call.waited_s * _SECOND_NS),
                attributes=_attributes(call),
            )
            wait.end(replica_start)
        if call.seconds:
            self._replica(call, replica_start, end)

    def close(self) -> None:
        """Sends the remaining spans. Takes at most the exporter's timeout."""
        self._provider.shutdown()

    def _replica(self, call: Served, start: int, end: int) -> None:
        attributes = _attributes(call) | {
            f"gen_ai.usage.{name}" if name.endswith("_tokens") else f"stoker.{name}": count
            for name, count in call.counts.items()
        }
        span = self._tracer.start_span("replica", start_time=start, attributes=attributes)
        if call.outcome not in (OK, CANCELLED):
            span.set_status(self._trace.StatusCode.ERROR, call.outcome)
        within = self._trace.set_span_in_context(span)
        # The phases end with the response. The time before them is the way to the replica.
        begin = max(start, end - sum(call.times.values()) * 1000)
        for phase, microseconds in call.times.items():
            phase_span = self._tracer.start_span(phase, context=within, start_time=begin)
            begin = min(end, begin + microseconds * 1000)
            phase_span.end(begin)
        span.end(end)


class RequestSpan:
    """Span of an HTTP request that has not ended.

    Paths, queries and bodies are content, so the span is named after the route's template.
    """

    def __init__(self, span: "Span", method: str, request_id: str) -> None:
        self._span = span
        self._method = method
        self._request_id = request_id

    def as_parent(self) -> AbstractContextManager[Any]:
        """Makes it the parent of the spans that the block and its tasks create."""
        from opentelemetry import trace

        # The exception's text might be content.
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, route: str | None, status: int, end_ns: int | None = None) -> None:
        """Ends the span.

        Args:
            status: status of the response. 0 if none was sent.
            end_ns: time of the end by `time.time_ns`. None means now.
        """
        from opentelemetry import trace

        span = self._span
        if route:
            span.update_name(f"{self._method} {route}")
            span.set_attribute("http.route", route)
        span.set_attribute("http.request.method", self._method)
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("stoker.request_id", self._request_id)
        if status >= 500 or not status:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_ns)


def _attributes(call: Served) -> dict[str, str | int]:
    return {
        "stoker.account": call.account_id,
        "stoker.deployment": call.deployment_id,
        "stoker.outcome": call.outcome,
        "gen_ai.request.model": call.model,
    }
