"""Gives calls to their handlers by the path alone."""

from collections.abc import Iterable

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.base.errors import StokerError
from stoker.inference.call import CallRoute
from stoker.platform.web.http import error_response, on_http_exception


class DirectCalls:
    """Around the app, which gets whatever is not a call.

    FastAPI's way to a handler (a middleware for exceptions and one for exit stacks, the routers'
    matches one after the other, an exit stack and a handler of exceptions a route) takes a third of
    what the gateway spends on a call. The app has the routes all the same: it documents them, and
    answers other methods.
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
        found = None
        if scope["type"] == "http" and scope["method"] == "POST":
            found = self._calls.get(scope["path"])
        if found is None:
            await self.app(scope, receive, send)
            return
        scope["route"], handle = found
        request = Request(scope, receive, send)
        try:
            response = await handle(request)
        except StokerError as error:
            response = error_response(error)
        except HTTPException as error:
            response = await on_http_exception(request, error)
        await response(scope, receive, send)
