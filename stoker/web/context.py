"""What a request handler can ask for: the services, a unit of work, the caller."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from stoker.agents.runs import Runs
from stoker.config import Settings
from stoker.deployments.directory import Directory
from stoker.jobs.runner import Runner
from stoker.keys.keyring import Keyring
from stoker.keys.limits import RateLimits
from stoker.media.collect import Collector
from stoker.runtime.interface import Runtime
from stoker.store.blobs import Blobs
from stoker.store.db import Database, Session
from stoker.store.secret import ServerSecret
from stoker.telemetry.recorder import Metrics
from stoker.telemetry.traces import Traces
from stoker.usage.balances import Credits
from stoker.usage.counts import Counts
from stoker.usage.metering import Metering


@dataclass(frozen=True, kw_only=True)
class Services:
    settings: Settings
    database: Database
    blobs: Blobs
    keyring: Keyring
    directory: Directory
    runtime: Runtime
    secret: ServerSecret
    media: Collector
    metrics: Metrics
    rate_limits: RateLimits
    traces: Traces | None
    credits: Credits
    counts: Counts
    metering: Metering
    videos: Runner[Any, Any]
    """Works on the jobs that are videos."""
    runs: Runs


def services(request: Request) -> Services:
    return request.app.state.services


async def _services(request: Request) -> Services:
    # A coroutine, though it awaits nothing: FastAPI sends plain functions to a thread pool.
    return services(request)


ServicesDep = Annotated[Services, Depends(_services)]


async def _transaction(services: ServicesDep) -> AsyncIterator[Session]:
    async with services.database.transaction() as session:
        yield session


async def _reading(services: ServicesDep) -> AsyncIterator[Session]:
    async with services.database.reading() as session:
        yield session


# scope="function": committed before the answer is sent, so that nothing acknowledged is lost.
WriteSession = Annotated[Session, Depends(_transaction, scope="function")]
ReadSession = Annotated[Session, Depends(_reading, scope="function")]
