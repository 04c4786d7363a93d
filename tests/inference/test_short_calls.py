"""Short calls are answered without ASGI messages, with the same bytes as by the app."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from stoker.base.errors import CapacityError, InferenceError
from stoker.inference.calls import Calls
from stoker.platform.web.exchange import EXCHANGE
from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.server.app import with_short_calls
from stoker.server.edge.connections import Connections
from stoker.server.edge.limits import EdgeLimits
from stoker.server.edge.protocol import HttpConnection
from stoker.store import db
from tests.support.app import App, serving

TOKENS, CHAT = "/v1/classifications/token", "/v1/chat/completions"
BODY = b'{"model": "tagger", "inputs": "a"}'
STREAM = b'{"model": "chat", "messages": [{"role": "user", "content": "a"}], "stream": true}'
ANSWER = b'[{"entity": "x"}]'


class Transport(asyncio.Transport):
    """Transport of a connection. Records what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def resume_reading(self) -> None: ...


class Asgi:
    """Passes requests to the app as another server would, without an exchange."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope.pop(EXCHANGE, None)
        await self._app(scope, receive, send)


class Edge:
    """Connections to an app, with Stoker's own protocol."""

    def __init__(self, app: App) -> None:
        settings = app.platform.settings
        self._connections = Connections(EdgeLimits.of(settings, 1000))
        self._short = with_short_calls(app.app)
        self.key = ""

    async def connect(self, *, is_short: bool) -> tuple[HttpConnection, Transport]:
        app = self._short if is_short else Asgi(self._short)
        config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
        config.load()
        protocol = HttpConnection(self._connections, config, ServerState(), {})
        transport = Transport()
        protocol.connection_made(transport)
        return protocol, transport

    async def ask(self, request: bytes, *, is_short: bool) -> bytes:
        protocol, transport = await self.connect(is_short=is_short)
        head, _, body = request.partition(b"\r\n\r\n")
        protocol.data_received(head + b"\r\n\r\n")
        await asyncio.sleep(0)
        if body:
            protocol.data_received(body)
        async with asyncio.timeout(10):
            while not (protocol.cycle and protocol.cycle.response_complete):
                if transport.is_closed:
                    break
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        return re.sub(rb"(req|chatcmpl)[_-][0-9a-z]+", rb"\1_ID", transport.written)

    def request(self, body: bytes, *headers: str, path: str = TOKENS, key: str = "") -> bytes:
        lines = [
            f"POST {path} HTTP/1.1",
            "host: stoker",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([f"authorization: Bearer {key or self.key}"] if key != "none" else []),
            *headers,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def entry(account_id: str, model: str, pipeline: str) -> DirectoryEntry:
    return DirectoryEntry(
        deployment_id=f"dep_{model}",
        version_id=f"ver_{model}",
        account_id=account_id,
        model=model,
        pipeline=pipeline,
        readiness="hot",
        source="s",
        created_at=db.now(),
        callable_versions=frozenset({f"ver_{model}", "ver_2"}),
    )


@pytest.fixture
async def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Edge]:
    async def run(self: Calls, entry: DirectoryEntry, call: Any, choose: Any, **_: Any) -> bytes:
        choose(entry)
        if getattr(call, "items", None) == ["lost"]:
            raise CapacityError("lost", code="worker_lost", retry_after_s=1)
        if getattr(call, "items", None) == ["bug"]:
            raise RuntimeError
        return ANSWER

    def stream(
        self: Calls, entry: DirectoryEntry, call: Any, choose: Any, **_: Any
    ) -> AsyncGenerator[bytes]:
        choose(entry)
        return parts("fail" in str(call.prompts))

    async def parts(fails: bool) -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(0)
        if fails:
            raise InferenceError("no")
        yield b"data: 2\n\n"

    monkeypatch.setattr(Calls, "run", run)
    monkeypatch.setattr(Calls, "stream", stream)
    async with serving(tmp_path / "data", cors_origins=["https://a.example"]) as app:
        client = await app.account()
        made = Edge(app)
        made.key = client.headers["authorization"].removeprefix("Bearer ")
        account_id = str(vars(client)["account_id"])
        directory = app.parts.get(Directory)
        directory.put(entry(account_id, "tagger", "token-classification"))
        directory.put(entry(account_id, "chat", "text-generation"))
        yield made
        await client.aclose()


async def test_both_ways_have_the_same_bytes(edge: Edge) -> None:
    requests = [
        edge.request(BODY),
        edge.request(BODY, "x-request-id: mine"),
        edge.request(BODY, "connection: close"),
        edge.request(BODY, "x-stoker-version: ver_2"),
        edge.request(BODY, "x-stoker-version: ver_3"),
        edge.request(BODY, "origin: https://a.example"),
        edge.request(BODY, "x-forwarded-proto: https"),
        edge.request(BODY, "prefer: wait=1", "prefer: wait=2"),
        edge.request(BODY, key="none"),
        edge.request(BODY, key="sk-a-b"),
        edge.request(BODY.replace(b"tagger", b"chat")),
        edge.request(BODY.replace(b"tagger", b"none")),
        edge.request(BODY.replace(b'"a"', b'"lost"')),
        edge.request(BODY.replace(b'"a"', b'"bug"')),
        edge.request(BODY + b" " * 20_000),
        edge.request(b"{"),
        edge.request(b""),
        edge.request(BODY, path=f"{TOKENS}/"),
        edge.request(STREAM, path=CHAT),
        edge.request(STREAM, "x-stoker-version: ver_2", path=CHAT),
        edge.request(STREAM.replace(b'"a"', b'"fail"'), path=CHAT),
    ]
    statuses, streams = set[bytes](), 0
    for request in requests:
        short, usual = [await edge.ask(request, is_short=way) for way in (True, False)]
        assert short == usual
        statuses.add(short[9:12])
        streams += b"data: 1" in short
    assert statuses == {b"200", b"400", b"401", b"404", b"500", b"503"}
    assert streams == 3


async def test_work_ends_with_its_client(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any, **__: Any) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    monkeypatch.setattr(Calls, "run", endless)
    caplog.set_level("INFO", "stoker.http")
    protocol, transport = await edge.connect(is_short=True)
    protocol.data_received(edge.request(BODY))
    async with asyncio.timeout(10):
        await begun.wait()
        protocol.connection_lost(None)
        await cancelled.wait()
        while not caplog.records:
            await asyncio.sleep(0)
    assert caplog.records[-1].__dict__["status"] == 499
    assert transport.written == b""
