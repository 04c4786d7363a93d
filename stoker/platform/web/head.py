"""Answers `HEAD` for every `GET` route: same status and headers, and no body (RFC 9110, 9.3.2)."""

import contextlib

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """Middleware that answers `HEAD` with the `GET` route, unless a separate route handles it.

    The work for a streamed body, such as a file or events, ends at the first part.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or not _is_for_get(scope):
            await self.app(scope, receive, send)
            return

        # A copy, because the surrounding server and the log use the original method.
        inner = {**scope, "method": "GET"}

        async def send_head(message: Message) -> None:
            if message["type"] != "http.response.body":
                # Copies additions such as rate-limit headers and the route.
                scope.update({name: value for name, value in inner.items() if name != "method"})
                await send(message)
                return
            has_more = message.get("more_body", False)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if has_more:
                raise _AnsweredError

        with contextlib.suppress(_AnsweredError):
            await self.app(inner, receive, send_head)


class _AnsweredError(Exception):
    """Raised after the headers are sent, to end the work on the body."""


def _is_for_get(scope: Scope) -> bool:
    """Returns True if the first route that accepts either method accepts only `GET`."""
    routes: list[BaseRoute] = scope["app"].routes
    for route in routes:
        if route.matches(scope)[0] is Match.FULL:
            return False
        if route.matches({**scope, "method": "GET"})[0] is Match.FULL:
            return True
    return False
