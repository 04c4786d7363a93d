"""Listens to events as a page does: on one connection, which it reads as events arrive."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

EVENTS = "/v1/events"
Told = tuple[str, Any]


class Ear:
    """Events that a stream has sent so far."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.status = 0
        self.error: Any = None
        self.is_over = False
        self._news = asyncio.Event()

    def hear(self, name: str, data: Any) -> None:
        self.told.append((name, data))
        self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    async def until(self, fits: Callable[[str, Any], bool], seconds: float = 20) -> Any:
        """Returns the data of the first past or future event that fits."""
        async with asyncio.timeout(seconds):
            while True:
                self._news.clear()
                for name, data in self.told:
                    if fits(name, data):
                        return data
                assert not self.is_over, self.told[-5:]
                await self._news.wait()

    async def over(self, seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while not self.is_over:
                self._news.clear()
                await self._news.wait()

    def of(self, name: str) -> list[Any]:
        return [data for event_name, data in self.told if event_name == name]


# Calls the app as a server does, because httpx's own transport would wait for the end of the
# answer.
@asynccontextmanager
async def listening(app: Any, headers: dict[str, str], query: str = "") -> AsyncIterator[Ear]:
    """Opens a connection to the app's events and closes it at the end."""
    ear, gone, pending = Ear(), asyncio.Event(), b""

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal pending
        if message["type"] == "http.response.start":
            ear.status = message["status"]
            return
        pending += message.get("body", b"")
        if ear.status != 200:
            ear.error = json.loads(pending) if not message.get("more_body") else None
            return
        while b"\n\n" in pending:
            block, _, pending = pending.partition(b"\n\n")
            lines = dict(line.split(": ", 1) for line in block.decode().split("\n"))
            if "data" in lines:
                ear.hear(lines.get("event", ""), json.loads(lines["data"]))

    scope = {
        "type": "http",
        "method": "GET",
        "path": EVENTS,
        "raw_path": EVENTS.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "scheme": "http",
        "http_version": "1.1",
        "server": ("stoker", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    answering = asyncio.create_task(app(scope, _first(receive), send))
    answering.add_done_callback(lambda _: ear.end())
    try:
        yield ear
    finally:
        gone.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                await answering


def _first(receive: Any) -> Any:
    """Returns a `receive` that first yields the request's empty body and then the disconnect."""
    was_asked = False

    async def received() -> dict[str, Any]:
        nonlocal was_asked
        if not was_asked:
            was_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return await receive()

    return received


def key_of(client: httpx.AsyncClient) -> dict[str, str]:
    return {"authorization": client.headers["authorization"]}
