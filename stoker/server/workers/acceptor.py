"""Accepts connections and gives them to worker processes, within the server's limits."""

import asyncio
import logging
import socket
from collections.abc import Callable

from stoker.server.workers.fleet import RemoteConnection, WorkerFleet

log = logging.getLogger(__name__)

_BACKLOG = 2048
_AT_ONCE = 64
"""Maximum number of connections that are accepted in one step of the event loop."""
_RETRY_S = 1.0
"""Seconds until connections are accepted again after an error."""

Build = Callable[[], asyncio.Protocol]
BuildContinued = Callable[[RemoteConnection, bytes], asyncio.Protocol]


class Acceptor:
    """Accepts connections until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        fleet: WorkerFleet,
        build: Build,
        build_continued: BuildContinued,
    ) -> None:
        """
        Args:
            build: returns the protocol of a connection that the server itself answers.
            build_continued: returns the protocol of a connection that a worker has handed over.
        """
        self._listener = listener
        self._fleet = fleet
        self._build = build
        self._build_continued = build_continued
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener, self._accept)
        self._fleet.start(self.continue_connection)

    def close(self) -> None:
        """Accepts no more connections."""
        self._loop.remove_reader(self._listener)
        self._listener.close()

    async def wait_opened(self) -> None:
        """Waits until all accepted and continued connections are open."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def continue_connection(self, remote: RemoteConnection, data: bytes) -> None:
        self._open(lambda: self._build_continued(remote, data), remote.client)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor is left, for example.
                log.error("connections cannot be accepted", extra={"why": str(error)})
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_RETRY_S, self._accept_again)
                return
            client.setblocking(False)
            if not self._fleet.give(client, address[0]):
                self._open(self._build, client)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _open(self, build: Build, client: socket.socket) -> None:
        opening = self._loop.create_task(self._loop.connect_accepted_socket(build, client))
        self._opening.add(opening)
        opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[object]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled() and (error := opening.exception()):
            log.warning("connection could not be opened", extra={"why": str(error)})
