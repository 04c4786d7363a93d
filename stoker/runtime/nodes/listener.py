"""Accepts TLS connections, up to a limit. A lower limit applies to connections without a
greeting.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

from stoker.runtime.nodes.framed_connection import FramedConnection

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 512
"""Maximum number of connections. Each server of a fleet needs one, and each `stoker doctor` one
more.
"""
MOST_UNKNOWN = 128
"""Maximum number of connections without a greeting, including TLS handshakes."""
GREETING_S = 10.0
"""Timeout in seconds from accepting a connection to its greeting, including the TLS handshake."""
_BACKLOG = 1024
"""The kernel drops further connections, and their clients try again after a second."""
_RETRY_S = 1.0
_LOG_EVERY_S = 60.0

NewLink = Callable[["ConnectionSlot"], FramedConnection]
"""Makes the link of a connection. The link's owner calls `introduce` and `end`."""


class ConnectionSlot:
    """Slot of one connection under the limits."""

    def __init__(self, listener: "NodeListener") -> None:
        self._listener = listener
        self._settled = asyncio.Event()

    def introduce(self) -> None:
        """Counts the connection as a gateway's. It no longer has a deadline."""
        self._listener.unknown.discard(self)
        self._listener.known.add(self)
        self._settled.set()

    def end(self) -> None:
        """Frees the slot of a closed connection."""
        self._listener.unknown.discard(self)
        self._listener.known.discard(self)
        self._settled.set()

    async def wait(self) -> None:
        """Waits until the connection is introduced or closed."""
        await self._settled.wait()


class NodeListener:
    """Accepts connections. A connection over a limit is closed before its TLS handshake.

    The listener accepts the sockets itself. The protocol factory of `create_server` cannot reject a
    connection: an exception in it makes uvloop stop accepting permanently. `create_server` does not
    report a failed handshake either, so the connection's slot could not be freed.
    """

    def __init__(self, context: ssl.SSLContext, new_link: NewLink) -> None:
        self.unknown: set[ConnectionSlot] = set()
        """Connections that have not introduced themselves."""
        self.known: set[ConnectionSlot] = set()
        self.refused = 0
        """Number of connections that were closed because of a limit, since the start."""
        self._context = context
        self._new_link = new_link
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged_at = -_LOG_EVERY_S

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept connections and returns the port. Port 0 picks a free port.

        Raises `OSError` if the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, address in dict.fromkeys((each[0], each[4]) for each in addresses):
            listening = socket.create_server(address, family=family, backlog=_BACKLOG)
            listening.setblocking(False)
            self._sockets.append(listening)
            self._spawn(self._accept(listening))
        bound: int = self._sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops accepting and closes connections that have not introduced themselves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                # For example, the process has no free descriptor.
                log.warning("connections cannot be accepted: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if self._is_full():
                accepted.close()
                self._count_refusal()
            else:
                connection = ConnectionSlot(self)
                self.unknown.add(connection)
                self._spawn(self._serve(accepted, connection))
            # `sock_accept` does not yield to the event loop while further connections wait.
            await asyncio.sleep(0)

    def _is_full(self) -> bool:
        unknown = len(self.unknown)
        return unknown >= MOST_UNKNOWN or unknown + len(self.known) >= MOST_CONNECTIONS

    async def _serve(self, accepted: socket.socket, connection: ConnectionSlot) -> None:
        """Creates a connection's link. Closes the connection if it is not introduced in time."""
        loop, link = asyncio.get_running_loop(), self._new_link(connection)
        try:
            async with asyncio.timeout(GREETING_S):
                await loop.connect_accepted_socket(lambda: link, accepted, ssl=self._context)
                if link.is_established:
                    await connection.wait()
        except OSError as error:
            # Includes `TimeoutError` and `ssl.SSLError`.
            log.debug("connection sent no valid hello: %s", error)
        finally:
            if connection in self.unknown:
                link.abort()
                connection.end()

    def _count_refusal(self) -> None:
        self.refused += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "too many connections: new connections are closed",
                extra={
                    "unknown": len(self.unknown),
                    "gateways": len(self.known),
                    "refused": self.refused,
                },
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
