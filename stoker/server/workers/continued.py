"""Connection that a worker has handed over to the server."""

import asyncio
import os
import socket
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from stoker.server.edge.connections import Connections, RefusalReason
from stoker.server.edge.protocol import HttpConnection
from stoker.server.workers.fleet import RemoteConnection, WorkerFleet

_RETRY_S = 0.002
_MOST_RETRIES = 50


class ContinuedConnection(HttpConnection):
    """Answers the requests that no worker answers. Returns a connection of calls to a worker, so
    that the connections of a proxy do not all end up at the server.
    """

    def __init__(
        self,
        connections: Connections,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        *,
        fleet: WorkerFleet,
        remote: RemoteConnection,
        data: bytes,
        ends: bool,
    ) -> None:
        """
        Args:
            data: bytes of requests that the worker has read and not answered.
            ends: True if the server stops, so that the connection ends after its request.
        """
        super().__init__(connections, config, state, app_state)
        self._fleet = fleet
        self._remote = remote
        self._data = data
        self._ends = ends
        self._unread_messages = 0
        """Requests of which a part has arrived, and not the end."""

    def _admit(self) -> RefusalReason | None:
        # It keeps its place.
        self._connections.forget(self._remote)
        return super()._admit()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._data:
            self.data_received(self._data)
        if self._ends:
            self.shutdown()

    def on_message_begin(self) -> None:
        self._unread_messages += 1
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._unread_messages -= 1
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._may_return():
            self.transport.pause_reading()
            self.loop.call_soon(self._return, _MOST_RETRIES)

    def _may_return(self) -> bool:
        is_between_requests = (
            not self._ends
            and not self.transport.is_closing()
            and self.cycle.keep_alive
            and self.cycle.response_complete
            and not self._waiting
            and not self._unread_messages
            and not self._is_deaf
        )
        return is_between_requests and (
            self._remote.calls > 0 or self._fleet.answers(self.cycle.scope["path"])
        )

    def _return(self, retries: int) -> None:
        if not self._may_return() or not retries:
            self.transport.resume_reading()
        elif self.transport.get_write_buffer_size():
            self.loop.call_later(_RETRY_S, self._return, retries - 1)
        elif self._fleet.is_ready:
            descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
            host = self.client[0] if self.client else ""
            self._connections.forget(self)
            self._fleet.take_back(self._remote, socket.socket(fileno=descriptor), host)
            self.transport.abort()
        else:
            self.transport.resume_reading()
