"""A request and its answer on their connection, for handlers that need no ASGI messages."""

from collections.abc import Callable, Sequence
from typing import Protocol

RawHeaders = Sequence[tuple[bytes, bytes]]

EXCHANGE = "stoker.exchange"
"""Name of the exchange in a request's scope. Other servers than Stoker's own provide none."""


class Exchange(Protocol):
    """One request of a connection. An answer to a client that has disconnected is dropped."""

    async def read_body(self) -> bytes:
        """Returns the whole body. Raises `ClientDisconnect`."""
        ...

    def watch(self, gone: Callable[[], object] | None) -> None:
        """Calls back once if the client disconnects. None ends the watch."""
        ...

    async def send_whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Sends a complete answer."""
        ...

    async def begin(self, status: int, headers: RawHeaders, first: bytes) -> None:
        """Sends the head of a streamed answer and its first part."""
        ...

    def send_part(self, content: bytes) -> None:
        """Sends a part of a streamed answer. Call `drain` before if the client reads slowly."""
        ...

    @property
    def is_slow(self) -> bool:
        """True if the client has not read enough of the earlier parts."""
        ...

    async def drain(self) -> None:
        """Waits until the client has read enough, or has disconnected."""
        ...

    async def end(self) -> None:
        """Ends a streamed answer."""
        ...
