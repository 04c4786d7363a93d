"""`GET /metrics`: requires an operator's key on the API's address, or is open on a separate
address.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.routing import Route

from stoker.base.errors import responses
from stoker.platform.web.context import part
from stoker.server.telemetry.recorder import Metrics
from stoker.tenancy.keys.auth import Operator

PATH = "/metrics"
OPENMETRICS = "application/openmetrics-text"

ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}, OPENMETRICS: {}}}}

_openmetrics: Any = openmetrics
_FORMATS: Mapping[bool, tuple[Callable[[Collector], bytes], str]] = {
    False: (exposition.generate_latest, CONTENT_TYPE_PLAIN_0_0_4),
    # Stoker's names need no escaping. Checking this takes half of the time.
    True: (
        partial(_openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8),
        openmetrics.CONTENT_TYPE_LATEST,
    ),
}

MetricsDep = Annotated[Metrics, part(Metrics)]

router = APIRouter(tags=["Metrics"])


@dataclass(frozen=True)
class _Collected(Collector):
    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


class Told(Protocol):
    """An object with metrics."""

    async def collect(self) -> Iterable[Metric]: ...


async def answer(metrics: Told, accept: str) -> Response:
    """Returns all metrics: as OpenMetrics if accepted, otherwise in Prometheus' text format."""
    collected = _Collected(await metrics.collect())
    is_open = OPENMETRICS in accept
    write, media_type = _FORMATS[is_open]
    # Metrics of thousands of deployments take nearly a second. Requests need not wait for that.
    content = await asyncio.to_thread(write, collected)
    return Response(content, headers={"content-type": media_type})


@router.get(
    PATH,
    response_class=Response,
    responses=ANSWERS | responses(),
)
async def get_metrics(request: Request, _caller: Operator, metrics: MetricsDep) -> Response:
    """Get the metrics of this server, for Prometheus."""
    return await answer(metrics, request.headers.get("accept", ""))


def standalone(metrics: Told) -> Starlette:
    """Returns an app that serves only the metrics, without authentication."""

    async def get(request: Request) -> Response:
        return await answer(metrics, request.headers.get("accept", ""))

    return Starlette(routes=[Route(PATH, get)])
