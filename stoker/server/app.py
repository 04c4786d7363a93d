"""Builds the ASGI app and the services behind it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware import Middleware

import stoker
from stoker.accounts.endpoints import router as accounts
from stoker.agents import runs as agent_runs
from stoker.agents.endpoints import router as agents
from stoker.agents.work import Working
from stoker.artifacts import service as artifacts_service
from stoker.artifacts.endpoints import router as artifacts
from stoker.config import MIB, Settings
from stoker.deployments import service as deployments_service
from stoker.deployments.directory import Directory
from stoker.deployments.endpoints import router as deployments
from stoker.deployments.events import EventLog
from stoker.deployments.folders import ModelFolders
from stoker.files.endpoints import links
from stoker.files.endpoints import router as files
from stoker.inference.tasks import router as tasks
from stoker.jobs.runner import Runner
from stoker.keys.auth import authenticate
from stoker.keys.endpoints import router as keys
from stoker.keys.keyring import Keyring
from stoker.keys.limits import RateLimits
from stoker.media.collect import Collector
from stoker.media.fetch import Fetcher
from stoker.openai.models import router as models
from stoker.openai.registry import ROUTERS as CONVENTIONS
from stoker.runtime.interface import Runtime, RuntimeListener
from stoker.runtime.local.runtime import LocalRuntime
from stoker.server import agents_document, health, openapi
from stoker.server.apidocs import endpoints as apidocs
from stoker.server.janitor import Janitor
from stoker.store.blobs import Blobs
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.store.tables.agents import Run
from stoker.store.tables.videos import Video
from stoker.telemetry import traces
from stoker.telemetry.credits import balances_left
from stoker.telemetry.endpoints import router as metrics
from stoker.telemetry.jobs import queue_lengths
from stoker.telemetry.recorder import Metrics
from stoker.usage.balances import Credits
from stoker.usage.counts import Counts
from stoker.usage.endpoints import router as usage
from stoker.usage.metering import Metering
from stoker.videos import service as videos_service
from stoker.videos.endpoints import router as videos
from stoker.web.context import Services
from stoker.web.cors import CrossOrigin
from stoker.web.http import AllowedHosts, LastResort, RequestContext, install_error_handlers

ROUTERS: tuple[APIRouter, ...] = (
    tasks,
    *CONVENTIONS,
    models,
    deployments,
    artifacts,
    keys,
    accounts,
    files,
    videos,
    agents,
    metrics,
    usage,
)


def build_services(settings: Settings) -> Services:
    data_dir = settings.data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.resolved_database_url)
    blobs = Blobs(data_dir / "blobs")
    known, counts = Credits(), Counts()
    runtime = LocalRuntime(settings, ModelFolders(settings, database, blobs), known.exhausted)
    directory = Directory()
    counted = Metrics(directory, runtime)
    counted.add(queue_lengths(database, {"video": Video, "agent_run": Run}))
    counted.add(balances_left(database))
    return Services(
        settings=settings,
        database=database,
        blobs=blobs,
        keyring=Keyring(database, settings.key_cache_s),
        directory=directory,
        runtime=runtime,
        secret=ServerSecret(data_dir),
        media=_media(settings),
        metrics=counted,
        rate_limits=RateLimits(),
        traces=traces.from_environment(),
        credits=known,
        counts=counts,
        metering=Metering(
            database,
            runtime.meter,
            known,
            counts,
            starting_credits=settings.starting_credits,
        ),
        videos=Runner(
            database,
            lease_s=settings.job_lease_s,
            at_once=settings.jobs_at_once,
            share=lambda deployment_id: _replicas(runtime, deployment_id),
        ),
        runs=agent_runs.build(settings, database),
    )


def _replicas(runtime: Runtime, deployment_id: str) -> int:
    """How many of a deployment's jobs can be worked on at a time."""
    stats = runtime.stats(deployment_id)
    return stats.max_replicas if stats else 1


def _media(settings: Settings) -> Collector:
    fetcher = Fetcher(
        allowed_hosts=settings.media_hosts,
        allowed_private=settings.media_private_hosts,
        ceiling_s=settings.media_timeout_s,
    )
    return Collector(
        fetcher,
        folders=settings.media_dirs,
        limit_bytes=settings.media_limit_mib * MIB,
        request_bytes=settings.media_request_limit_mib * MIB,
    )


def create_app(settings: Settings | None = None) -> FastAPI:
    services = build_services(settings or Settings())

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with running(services):
            yield

    app = FastAPI(
        title="Stoker",
        version=stoker.__version__,
        summary=stoker.__doc__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        # Our own page needs nothing from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would be built from the client's Host header.
        redirect_slashes=False,
        middleware=_middleware(services),
    )
    app.state.services = services
    install_error_handlers(app)
    app.include_router(health.router)
    app.include_router(apidocs.router)
    # Before the routes that it describes: `openapi.json` is no agent's id.
    app.include_router(agents_document.router)
    app.mount(apidocs.STATIC, apidocs.files)
    for router in ROUTERS:
        # Deny by default: no route of a resource can be reached without a key.
        app.include_router(router, dependencies=[Depends(authenticate)])
    app.include_router(links)
    openapi.install(app)
    return app


def _middleware(services: Services) -> list[Middleware]:
    settings = services.settings
    limit = settings.body_limit_mib * MIB
    found = [
        Middleware(
            RequestContext, body_limit=limit, metrics=services.metrics, traces=services.traces
        )
    ]
    if settings.cors_origins:
        # Around whatever may refuse a request: pages can read errors, too.
        found.append(Middleware(CrossOrigin, origins=settings.cors_origins))
    found.append(Middleware(LastResort))
    if "*" not in settings.allowed_hosts:
        found.append(Middleware(AllowedHosts, allowed_hosts=settings.allowed_hosts))
    return found


def _listeners(services: Services, events: EventLog) -> list[RuntimeListener]:
    traces = [services.traces] if services.traces else []
    return [events, services.metrics, services.rate_limits, services.counts, *traces]


@contextlib.asynccontextmanager
async def running(services: Services) -> AsyncGenerator[None]:
    """The services at work: schema up to date, replicas wanted started, janitor sweeping."""
    await services.database.migrate()
    await artifacts_service.recover(services.database, services.blobs)
    events = EventLog(services.database)
    await services.metering.open()
    await services.runtime.start(_listeners(services, events))
    await deployments_service.restore(services)
    background = [
        asyncio.create_task(Janitor(services).run()),
        asyncio.create_task(events.run()),
        asyncio.create_task(services.metering.run()),
        asyncio.create_task(services.runs.journal.run()),
    ]
    jobs = [
        asyncio.create_task(services.videos.run(videos_service.Making(services))),
        asyncio.create_task(services.runs.runner.run(Working(services))),
    ]
    try:
        yield
    finally:
        # Jobs are handed back before their replicas end: the next start goes on with them.
        for task in jobs:
            task.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await services.runtime.stop()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await services.metering.close()
        await services.media.close()
        services.runs.outbound.close()
        await services.keyring.flush_last_used()
        await services.database.close()
        if services.traces:
            await asyncio.to_thread(services.traces.close)
