"""Dispatches calls to their handlers by path alone."""

from collections.abc import Iterable

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.base.errors import StokerError
from stoker.inference.routes import CallRoute
from stoker.platform.web.error_handlers import error_response, on_http_exception


class DirectCalls:
    """ASGI middleware that dispatches calls directly and passes other requests to the app.

    FastAPI's path to a handler takes a third of the gateway's time for a call. It consists of two
    middlewares for exceptions and exit stacks, the routers' matching in sequence, and an exit stack
    and exception handler per route. The app still has the routes: it documents them and answers
    other methods.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self.app = app
        routes = [route for router in routers for route in router.routes]
        self._calls = {
            route.path: (route, route.get_route_handler())
            for route in routes
            if isinstance(route, CallRoute) and not route.param_convertors
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = None
        if scope["type"] == "http" and scope["method"] == "POST":
            call = self._calls.get(scope["path"])
        if call is None:
            await self.app(scope, receive, send)
            return
        scope["route"], handle = call
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except StokerError as error:
            response = error_response(error, scope)
        except HTTPException as error:
            response = await on_http_exception(request, error)
        await response(scope, receive, send)
