"""Tools on servers that speak the Model Context Protocol over HTTP, through the official SDK."""

import asyncio
import contextlib
import importlib
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import httpx2
import orjson

from stoker.base.errors import CapacityError, InvalidRequestError, StokerError
from stoker.wire import schema_limits as limits
from stoker.workloads.agents.outbound import Outbound, OutboundRefusedError
from stoker.workloads.agents.transcript import ListedTool, McpServer

MAX_TOOLS = 128
"""Maximum number of tools of one server."""
MAX_OUTPUT_CHARS = 1 << 20
MAX_PARTS = 4096
"""Maximum number of parts of a result."""
MAX_NAME_CHARS = 128
"""Maximum length recommended by the protocol."""
MAX_SCHEMAS_CHARS = 1 << 20
"""Maximum characters of all tool schemas of a run. Each step sends them to the model."""
_MAX_DESCRIPTION_CHARS = 8192
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS = 64
_ENDING_S = 0.1
"""Seconds to wait for a session's end: a broken session fails its calls before it ends."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolResult:
    text: str
    is_error: bool


class ToolServers:
    """Connections of one active run. Sessions live as long as the run is active: servers may keep
    state in them.
    """

    def __init__(self, outbound: Outbound, timeout_s: float) -> None:
        self._outbound = outbound
        self._timeout_s = timeout_s
        self._connections: dict[str, _ToolSession] = {}
        self._schemas_chars = 0

    async def list(self, server: McpServer, taken: Collection[str]) -> list[ListedTool]:
        """Returns the tools of a server, under names that are not in `taken`.

        Raises `CapacityError` if the server does not answer now, `InvalidRequestError` if a retry
        would not help.
        """
        tools: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                client = await self._client(server)
                while True:
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if cursor is None or len(tools) > MAX_TOOLS:
                        break
        except Exception as error:
            await self._drop(server)
            raise _unreachable(server, error) from None
        if len(tools) > MAX_TOOLS:
            raise _unusable(server, f"it has more than {MAX_TOOLS} tools")
        names = set(taken)
        listed: list[ListedTool] = []
        for tool in tools:
            if server.allowed_tools is not None and tool.name not in server.allowed_tools:
                continue
            if len(tool.name) > MAX_NAME_CHARS:
                raise _unusable(
                    server,
                    f"the name of one of its tools has {len(tool.name)} characters; the limit is "
                    f"{MAX_NAME_CHARS}",
                )
            if problem := limits.excess(tool.input_schema):
                raise _unusable(server, f"the schema of its tool '{tool.name[:64]}' {problem}")
            self._schemas_chars += len(orjson.dumps(tool.input_schema))
            if self._schemas_chars > MAX_SCHEMAS_CHARS:
                raise _unusable(
                    server,
                    f"the schemas of the run's tools have more than {MAX_SCHEMAS_CHARS} "
                    "characters together; use 'allowed_tools' to select fewer tools",
                )
            # Checking a schema may take a millisecond. Yields to other tasks.
            await asyncio.sleep(0)
            name = _free_name(server.label, tool.name, names)
            names.add(name)
            listed.append(
                ListedTool(
                    name=name,
                    tool=tool.name,
                    description=(tool.description or "")[:_MAX_DESCRIPTION_CHARS] or None,
                    parameters=tool.input_schema,
                )
            )
        return listed

    async def call(self, server: McpServer, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Returns the tool's output. Errors are reported to the model, which may react to them."""
        try:
            async with asyncio.timeout(self._timeout_s):
                client = await self._client(server)
                result = await client.call_tool(tool, arguments)
        except TimeoutError as error:
            # Other calls of this session may still be pending, so the session stays open.
            return ToolResult(f"The tool failed: {_reason(error)}.", is_error=True)
        except Exception as error:
            if _is_answer(error):
                await self._drop_ended(server, error)
                return ToolResult(f"The tool failed: {error}"[:MAX_OUTPUT_CHARS], is_error=True)
            await self._drop(server)
            return ToolResult(f"The tool failed: {_reason(error)}.", is_error=True)
        if len(result.content) > MAX_PARTS:
            return ToolResult(
                f"The tool failed: its answer has {len(result.content)} parts; the limit is "
                f"{MAX_PARTS}.",
                is_error=True,
            )
        text = _text(result)
        if len(text) > MAX_OUTPUT_CHARS:
            return ToolResult(
                f"The tool failed: its answer has {len(text)} characters; the limit is "
                f"{MAX_OUTPUT_CHARS}.",
                is_error=True,
            )
        return ToolResult(text, bool(result.is_error))

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    async def _client(self, server: McpServer) -> Any:
        connection = self._connections.get(server.label)
        if connection is None:
            connection = self._connections[server.label] = _ToolSession(
                self._outbound, server, self._timeout_s
            )
        return await connection.client()

    async def _drop_ended(self, server: McpServer, error: Any) -> None:
        """Drops a session that has ended by itself, so that the next call opens another.

        The library reports this like a server's answer, with an error code that servers also use.
        """
        from mcp_types import CONNECTION_CLOSED

        connection = self._connections.get(server.label)
        if error.code == CONNECTION_CLOSED and connection and await connection.has_ended():
            await self._drop(server)

    async def _drop(self, server: McpServer) -> None:
        if connection := self._connections.pop(server.label, None):
            await connection.close()


class _ToolSession:
    """A session that a separate task holds open. Its failure cancels no other task."""

    def __init__(self, outbound: Outbound, server: McpServer, timeout_s: float) -> None:
        self._outbound = outbound
        self._server = server
        self._timeout_s = timeout_s
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    async def client(self) -> Any:
        """Returns the session's client. Raises the errors of opening it."""
        return await asyncio.shield(self._opened)

    async def has_ended(self) -> bool:
        """Returns True if the session has ended by itself or is about to."""
        await asyncio.wait([self._task], timeout=_ENDING_S)
        return self._task.done()

    async def close(self) -> None:
        self._closing.set()
        # The session may have to close its connection to a server that does not respond.
        _, pending = await asyncio.wait([self._task], timeout=1.0)
        for task in pending:
            task.cancel()
            await asyncio.wait([task])

    async def _hold(self) -> None:
        try:
            # The import takes a second of a core, so it must not run on the event loop.
            mcp: Any = await asyncio.to_thread(importlib.import_module, "mcp")
            http: Any = importlib.import_module("mcp.client.streamable_http")
            server = self._server
            async with (
                self._outbound.client(server.headers, self._timeout_s) as client,
                mcp.Client(
                    http.streamable_http_client(server.url, http_client=client),
                    read_timeout_seconds=self._timeout_s,
                ) as session,
            ):
                # The server's own schema may have any pattern, which could block the event loop
                # without a limit. The model can also read a result that does not match it.
                session.session.validate_tool_result = _not_validated
                self._opened.set_result(session)
                await self._closing.wait()
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(
                    error if isinstance(error, Exception) else ConnectionError("closed")
                )
                # Retrieves the exception, as its caller may have stopped waiting.
                self._opened.exception()
            if not isinstance(error, Exception):
                raise
            log.info("tool server's session ended", extra={"cause": type(error).__name__})


async def _not_validated(_name: str, _result: Any) -> None:
    return None


def _unreachable(server: McpServer, error: BaseException) -> StokerError:
    if isinstance(_cause(error), OutboundRefusedError):
        return _unusable(
            server,
            "its host has no address, has one that is not public, or is not allowed. "
            "The operator can allow hosts in STOKER_TOOL_PRIVATE_HOSTS and "
            "STOKER_TOOL_HOSTS",
        )
    return CapacityError(
        f"The tool server '{server.label}' cannot be used: {_reason(error)}.",
        code="tool_server_unreachable",
    )


def _unusable(server: McpServer, why: str) -> StokerError:
    return InvalidRequestError(
        f"The tool server '{server.label}' cannot be used: {why}.", code="tool_server_unusable"
    )


def _reason(error: BaseException) -> str:
    """Returns a reason that reveals no internals and repeats no text of the server."""
    cause = _cause(error)
    if isinstance(cause, TimeoutError | httpx2.TimeoutException):
        return "it did not answer in time"
    if _is_answer(cause):
        return "it answered with an error"
    return "it cannot be reached, closed the connection, or does not speak the protocol"


def _cause(error: BaseException) -> BaseException:
    """Returns the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _is_answer(error: BaseException) -> bool:
    """True if the server answered with an error and the session continues."""
    from mcp.shared.exceptions import MCPError

    return isinstance(error, MCPError)


def _free_name(label: str, tool: str, taken: Collection[str]) -> str:
    """Returns a free function name for a tool.

    Uses the tool's own name if it is valid and free, else prefixes the label, else appends a
    number.
    """
    plain = _NOT_IN_NAMES.sub("_", tool)[:_NAME_CHARS] or "tool"
    if plain not in taken:
        return plain
    labelled = f"{label}_{plain}"[:_NAME_CHARS]
    number, name = 1, labelled
    while name in taken:
        number += 1
        name = f"{labelled[: _NAME_CHARS - 4]}_{number}"
    return name


def _text(result: Any) -> str:
    """Returns a result as text for the model: its texts, or its value. Media is named and left
    out.
    """
    parts = [
        block.text if block.type == "text" else f"[{block.type}, not shown]"
        for block in result.content
    ]
    if not parts and result.structured_content is not None:
        with contextlib.suppress(TypeError):
            return orjson.dumps(result.structured_content).decode()
    return "\n".join(parts)
