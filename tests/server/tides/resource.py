"""A made-up resource. Its record is all that a server needs."""

import asyncio
from collections.abc import Iterable
from datetime import datetime

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from stoker.inference.calls import Calls
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource, Source, Upkeep
from stoker.platform.web.context import Platform
from tests.server.tides.context import TideContext
from tests.server.tides.endpoints import router


def _context(parts: ServerParts) -> TideContext:
    return TideContext(**vars(parts.get(Platform)), calls=parts.get(Calls))


async def _work(parts: ServerParts) -> None:
    steps = parts.get(TideContext).steps
    steps.append("task started")
    try:
        await asyncio.Event().wait()
    finally:
        steps.append("task stopped")


async def _maintain(parts: ServerParts, _now: datetime) -> None:
    parts.get(TideContext).steps.append("maintained")


async def _close(parts: ServerParts) -> None:
    parts.get(TideContext).steps.append("closed")


def _source(parts: ServerParts) -> Source:
    async def collect() -> Iterable[Metric]:
        count = len(parts.get(TideContext).steps)
        return [GaugeMetricFamily("stoker_tide_steps", "Steps that have run.", value=count)]

    return collect


RESOURCE = Resource(
    name="tides",
    parts=[_context],
    routers=[router],
    tasks={"tides": _work},
    metrics=lambda parts: [_source(parts)],
    upkeep=Upkeep(shared=_maintain),
    closing={"tides": _close},
)
