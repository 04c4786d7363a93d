"""Sends the head of a response together with the first part of its body, if that follows
immediately.

This saves the kernel a packet and the peer a read: uvicorn writes both separately.
"""

import asyncio

JOINED_BYTES = 64 * 1024
"""Maximum size of a joined body part in bytes. For larger parts a copy costs more than a separate
packet for the head.
"""


class AnswerTransport:
    """Transport for one response. Uvicorn writes to it as to the connection's transport."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun, self._head = True, data
            self._loop.call_soon(self._flush)
        elif self._head is not None and len(data) <= JOINED_BYTES:
            data, self._head = self._head + data, None
            self._transport.write(data)
        else:
            self._flush()
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)
