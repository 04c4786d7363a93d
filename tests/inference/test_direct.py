"""Inference calls find their handlers by path alone. The app handles all other requests."""

import asyncio

from starlette.types import Message, Receive, Scope, Send

from stoker.base.errors import NotFoundError
from stoker.inference.direct import DirectCalls
from stoker.inference.routes import CallRoute
from stoker.platform.web.http import route_of
from stoker.server.resources import RESOURCES

ROUTERS = RESOURCES.routers
PATHS = [
    route.path for router in ROUTERS for route in router.routes if isinstance(route, CallRoute)
]


class App:
    """Stand-in for the app. Records the requests that reach it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        self.asked.append((scope["method"], scope["path"]))


class Parts:
    """Empty parts of the app. A lookup raises `NotFoundError`."""

    def get(self, kind: type) -> None:
        raise NotFoundError(f"no {kind.__name__} here", code="seen")


class State:
    parts = Parts()


class Described:
    state = State()


def ask(direct: DirectCalls, method: str, path: str) -> tuple[Scope, list[Message]]:
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [],
        "app": Described(),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(direct(scope, receive, send))
    return scope, sent


class TestDirectCalls:
    def test_every_call_is_given_to_its_handler(self) -> None:
        app = App()
        direct = DirectCalls(app, ROUTERS)
        assert len(PATHS) > 30
        for path in PATHS:
            scope, sent = ask(direct, "POST", path)
            # The handler first looks up the caller.
            assert sent[0]["status"] == 404
            assert b'"code":"seen"' in sent[1]["body"]
            assert route_of(scope) == path
        assert app.asked == []

    def test_all_else_is_the_apps(self) -> None:
        app = App()
        direct = DirectCalls(app, ROUTERS)
        requests = [
            ("GET", PATHS[0]),
            ("OPTIONS", PATHS[0]),
            ("POST", f"{PATHS[0]}/"),
            ("POST", "/v1/deployments"),
            ("POST", "/v1/api-keys"),
        ]
        for method, path in requests:
            scope, sent = ask(direct, method, path)
            assert sent == []
            assert route_of(scope) is None
        assert app.asked == requests
