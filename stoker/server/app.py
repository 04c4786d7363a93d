"""Builds the ASGI app over the services."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware import Middleware

import stoker
from stoker.base.config import MIB, Settings
from stoker.inference.direct import DirectCalls
from stoker.inference.openai.models import router as models
from stoker.inference.routes import router as calls
from stoker.platform.web.context import install
from stoker.platform.web.cors import CrossOrigin
from stoker.platform.web.error_handlers import install_error_handlers
from stoker.platform.web.head import HeadRequests
from stoker.platform.web.http import AllowedHosts, LastResort, RequestContext
from stoker.platform.web.prefix import PathPrefix
from stoker.registry.artifacts.endpoints import router as artifacts
from stoker.registry.artifacts.imports.endpoints import router as imports
from stoker.registry.deployments.endpoints import router as deployments
from stoker.registry.files.endpoints import links
from stoker.registry.files.endpoints import router as files
from stoker.server import agents_document, health, openapi
from stoker.server.apidocs import endpoints as apidocs
from stoker.server.console.endpoints import links as console_links
from stoker.server.console.endpoints import router as console
from stoker.server.console.pages import router as pages
from stoker.server.erasure.endpoints import router as erasure
from stoker.server.events.endpoints import router as watching
from stoker.server.lifecycle import running
from stoker.server.services import Services, build_services
from stoker.server.telemetry.endpoints import router as metrics
from stoker.tenancy.accounts.endpoints import quotas
from stoker.tenancy.accounts.endpoints import router as accounts
from stoker.tenancy.keys.auth import authenticate
from stoker.tenancy.keys.endpoints import router as keys
from stoker.tenancy.keys.limits import RateLimits
from stoker.tenancy.usage.endpoints import router as usage
from stoker.workloads.agents.endpoints import router as agents
from stoker.workloads.evaluation.checks.endpoints import router as checks
from stoker.workloads.evaluation.trials.endpoints import router as trials
from stoker.workloads.rollouts.endpoints import router as versions
from stoker.workloads.videos.endpoints import router as videos

ROUTERS: tuple[APIRouter, ...] = (
    calls,
    models,
    deployments,
    versions,
    checks,
    trials,
    artifacts,
    imports,
    keys,
    accounts,
    erasure,
    quotas,
    files,
    videos,
    agents,
    metrics,
    usage,
    console_links,
    watching,
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
        # Stoker builds the document itself, off the event loop.
        openapi_url=None,
        # Stoker's own documentation page loads nothing from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would be built from the client's Host header.
        redirect_slashes=False,
        middleware=_middleware(services),
    )
    app.state.services = services
    install(app, services.parts())
    # Registers the limits under their base class, because they may be `SharedLimits`.
    app.state.parts[RateLimits] = services.rate_limits
    install_error_handlers(app)
    app.include_router(health.router)
    app.include_router(apidocs.router)
    # Comes before the routes that it describes, so that `openapi.json` is not read as an agent's
    # id.
    app.include_router(agents_document.router)
    app.mount(apidocs.STATIC, apidocs.files)
    for router in ROUTERS:
        # Denied by default: no route of a resource can be reached without a key.
        app.include_router(router, dependencies=[Depends(authenticate)])
    app.include_router(links)
    app.include_router(console)
    app.include_router(pages)
    openapi.install(app)
    return app


def know_routes(app: FastAPI) -> None:
    """Prepares all routes. Otherwise FastAPI would prepare them while the first requests wait."""
    nowhere: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/-",
        "root_path": "",
        "headers": [],
    }
    for route in app.routes:
        route.matches({**nowhere})


def _middleware(services: Services) -> list[Middleware]:
    settings = services.platform.settings
    middleware: list[Middleware] = []
    if settings.public_url and urlsplit(settings.public_url).path.rstrip("/"):
        middleware.append(Middleware(PathPrefix, public_url=settings.public_url))
    middleware.append(
        Middleware(
            RequestContext,
            body_limit=settings.body_limit_mib * MIB,
            json_limit=settings.json_limit_mib * MIB,
            metrics=services.metrics,
            traces=services.traces,
        )
    )
    if settings.cors_origins:
        # Wraps everything that may reject a request, so that pages can read errors, too.
        middleware.append(Middleware(CrossOrigin, origins=settings.cors_origins))
    middleware.append(Middleware(LastResort))
    if "*" not in settings.allowed_hosts:
        middleware.append(Middleware(AllowedHosts, allowed_hosts=settings.allowed_hosts))
    middleware.append(Middleware(DirectCalls, routers=ROUTERS))
    middleware.append(Middleware(HeadRequests))
    return middleware
