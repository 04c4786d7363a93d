"""Builds the ASGI app over the parts of a server."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import stoker
from stoker.base.config import MIB, Settings
from stoker.inference.direct import DirectCalls
from stoker.inference.short_calls import ShortCalls
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources
from stoker.platform.web.context import Platform
from stoker.platform.web.cors import CrossOrigin
from stoker.platform.web.error_handlers import install_error_handlers
from stoker.platform.web.head import HeadRequests
from stoker.platform.web.http import AllowedHosts, LastResort, RequestContext
from stoker.platform.web.prefix import PathPrefix
from stoker.server import agents_document, health, openapi
from stoker.server.apidocs import endpoints as apidocs
from stoker.server.lifecycle import running
from stoker.server.resources import RESOURCES
from stoker.server.services import build_services
from stoker.server.telemetry.recorder import Metrics
from stoker.server.telemetry.traces import Traces
from stoker.tenancy.keys.auth import authenticate


def create_app(settings: Settings | None = None, resources: Resources = RESOURCES) -> FastAPI:
    parts = build_services(settings or Settings(), resources)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with running(parts):
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
        middleware=_middleware(parts),
    )
    app.state.parts = parts
    install_error_handlers(app)
    app.include_router(health.router)
    app.include_router(apidocs.router)
    # Comes before the routes that it describes, so that `openapi.json` is not read as an agent's
    # id.
    app.include_router(agents_document.router)
    app.mount(apidocs.STATIC, apidocs.files)
    for router in resources.routers:
        # Denied by default: no route of a resource can be reached without a key.
        app.include_router(router, dependencies=[Depends(authenticate)])
    for router in resources.open_routers:
        app.include_router(router)
    openapi.install(app)
    return app


def with_short_calls(app: FastAPI) -> ASGIApp:
    """Returns the app for Stoker's own HTTP server, which answers short calls without ASGI."""
    parts: ServerParts = app.state.parts
    settings = parts.get(Platform).settings
    forwarded = partial(ProxyHeadersMiddleware, trusted_hosts=settings.trusted_proxies)
    wrap = cast("Callable[[ASGIApp], ASGIApp]", forwarded)
    if parts.find(Traces):
        # The middlewares create the spans.
        return wrap(app)
    return ShortCalls(app, wrap, parts.get(Metrics), settings)


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


def _middleware(parts: ServerParts) -> list[Middleware]:
    settings = parts.get(Platform).settings
    middleware: list[Middleware] = []
    if settings.public_url and urlsplit(settings.public_url).path.rstrip("/"):
        middleware.append(Middleware(PathPrefix, public_url=settings.public_url))
    middleware.append(
        Middleware(
            RequestContext,
            body_limit=settings.body_limit_mib * MIB,
            json_limit=settings.json_limit_mib * MIB,
            metrics=parts.get(Metrics),
            traces=parts.find(Traces),
        )
    )
    if settings.cors_origins:
        # Wraps everything that may reject a request, so that pages can read errors, too.
        middleware.append(Middleware(CrossOrigin, origins=settings.cors_origins))
    middleware.append(Middleware(LastResort))
    if "*" not in settings.allowed_hosts:
        middleware.append(Middleware(AllowedHosts, allowed_hosts=settings.allowed_hosts))
    middleware.append(Middleware(DirectCalls, routers=parts.get(Resources).routers))
    middleware.append(Middleware(HeadRequests))
    return middleware
