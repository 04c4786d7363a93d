"""Metrics and traces as a resource."""

from collections.abc import Sequence

from stoker.base.config import Settings
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Resources, Source
from stoker.platform.web.context import Platform
from stoker.registry.deployments.directory import Directory
from stoker.runtime.listening import RuntimeListener
from stoker.server.telemetry.endpoints import router
from stoker.server.telemetry.jobs import queue_lengths
from stoker.server.telemetry.loop_watch import LoopWatch
from stoker.server.telemetry.nodes import of_nodes
from stoker.server.telemetry.quotas import quotas_used
from stoker.server.telemetry.recorder import Metrics
from stoker.server.telemetry.traces import Traces


def _metrics(parts: ServerParts) -> Metrics:
    """Returns the metrics, with the sources of all resources."""
    metrics = Metrics(parts.get(Directory), parts.get(Platform).runtime)
    for resource in parts.get(Resources):
        for source in resource.metrics(parts):
            metrics.add(source)
    return metrics


def _loop_watch(parts: ServerParts) -> LoopWatch:
    return LoopWatch(parts.get(Settings).loop_step_limit_ms / 1000)


def _sources(parts: ServerParts) -> Sequence[Source]:
    platform = parts.get(Platform)
    tables = {jobs.kind: jobs.table for jobs in parts.get(Resources).jobs}
    return [
        queue_lengths(platform.database, tables),
        quotas_used(platform.database, platform.quotas),
        of_nodes(platform.runtime),
        parts.get(LoopWatch).collect,
    ]


def _listeners(parts: ServerParts) -> Sequence[RuntimeListener]:
    traces = parts.find(Traces)
    return [parts.get(Metrics), *([traces] if traces else [])]


RESOURCE = Resource(
    name="telemetry",
    parts=[_metrics, _loop_watch],
    routers=[router],
    listeners=_listeners,
    metrics=_sources,
)
