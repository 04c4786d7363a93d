"""Uvicorn's server without its timer, which wakes ten times a second.

The timer checks whether the server has to exit, and renews the Date header. Here an event reports
the exit, and the first request of a second renews the header.
"""

import asyncio
import time
from email.utils import formatdate

import uvicorn
from uvicorn.server import ServerState


class DatedState(ServerState):
    """State of a server whose default headers show the current second."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._config = config
        self._second = 0
        self._headers: list[tuple[bytes, bytes]] = []
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            date = (b"date", formatdate(second, usegmt=True).encode())
            self._second, self._headers = second, [date, *self._config.encoded_headers]
        return self._headers

    @default_headers.setter
    def default_headers(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Ignores the headers that uvicorn sets at the start."""


class EventServer(uvicorn.Server):
    """Server that sleeps until a request arrives or it has to exit."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._exit = asyncio.Event()
        super().__init__(config)
        self.server_state = DatedState(config)

    @property
    def should_exit(self) -> bool:
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, is_due: bool
    ) -> None:
        if is_due:
            self._exit.set()
        else:
            self._exit.clear()

    async def main_loop(self) -> None:
        await self._exit.wait()
