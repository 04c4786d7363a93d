"""Tool servers that use the official MCP SDK, on ports of this machine."""

import contextlib
import threading
import time
from collections.abc import Generator
from typing import Any

import anyio.to_thread
import uvicorn

SUNNY = {"temperature": 21, "condition": "sunny"}


class Tools:
    """Three weather servers. One answers at once, one waits for `release`, and one fails."""

    def __init__(self) -> None:
        self.url = self.slow_url = self.failing_url = ""
        self.calls: list[tuple[str, str]] = []
        """Server names and cities of all calls."""
        self.release = threading.Event()

    def cities(self, server: str) -> list[str]:
        return [city for name, city in self.calls if name == server]

    def app(self, name: str) -> Any:
        # Imported here because the import takes a second, which only one test process should spend.
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError

        server: Any = MCPServer(name, log_level="CRITICAL")

        @server.tool()
        async def get_weather(city: str) -> dict[str, Any]:
            """Look up the current weather in a city."""
            self.calls.append((name, city))
            if name == "slow":
                await anyio.to_thread.run_sync(self.release.wait, 60)
            if name == "failing":
                raise ToolError("no such city")
            return SUNNY

        return server.streamable_http_app()


@contextlib.contextmanager
def listening(app: Any, port: int = 0) -> Generator[str]:
    """Serves an app and yields its address."""
    config = uvicorn.Config(app, port=port, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        if time.monotonic() > deadline or not thread.is_alive():
            raise RuntimeError("it does not serve")
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextlib.contextmanager
def serving() -> Generator[Tools]:
    tools = Tools()
    with (
        listening(tools.app("weather")) as url,
        listening(tools.app("slow")) as slow,
        listening(tools.app("failing")) as failing,
    ):
        tools.url, tools.slow_url, tools.failing_url = (
            f"{base_url}/mcp" for base_url in (url, slow, failing)
        )
        try:
            yield tools
        finally:
            tools.release.set()
