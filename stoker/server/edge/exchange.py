"""One request of a connection and its answer."""

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from stoker.platform.web.exchange import RawHeaders
from stoker.server.edge.answer_transport import JOINED_BYTES


class HttpExchange(RequestResponseCycle):
    """Uvicorn's request cycle for ASGI apps, and an `Exchange` for handlers that use no messages.

    The headers of an `Exchange` are not checked, because only the server itself sets their values.
    """

    def __init__(
        self,
        scope: HTTPScope,
        connection: HttpToolsProtocol,
        *,
        keep_alive: bool,
        on_response: Callable[[], None],
    ) -> None:
        super().__init__(
            scope=scope,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=connection.expect_100_continue,
            keep_alive=keep_alive,
            on_response=on_response,
        )
        self._connection = connection.transport
        self._gone: Callable[[], object] | None = None

    # --- Exchange ---

    async def read_body(self) -> bytes:
        while self.more_body and not self.disconnected:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected:
            raise ClientDisconnect
        return bytes(self.body)

    def watch(self, gone: Callable[[], object] | None) -> None:
        self._gone = gone
        if gone and self.disconnected:
            gone()

    async def send_whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        if await self._may_write():
            head = self._head(status, headers)
            if len(body) <= JOINED_BYTES:
                self._connection.write(head + body)
            else:
                self._connection.write(head)
                self._connection.write(body)
            self._complete()

    async def begin(self, status: int, headers: RawHeaders, first: bytes) -> None:
        if await self._may_write():
            self.chunked_encoding = True
            self._connection.write(self._head(status, headers) + _chunk(first))

    def send_part(self, content: bytes) -> None:
        if content and not self.disconnected:
            self._connection.write(_chunk(content))

    @property
    def is_slow(self) -> bool:
        return self.flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        await self.flow.drain()

    async def end(self) -> None:
        if await self._may_write():
            self._connection.write(b"0\r\n\r\n")
            self._complete()

    # --- for the connection ---

    def abandon(self) -> None:
        """Handles the end of the connection."""
        if self.response_complete:
            return
        self.disconnected = True
        self.waiting_for_100_continue = False
        self.message_event.set()
        gone, self._gone = self._gone, None
        if gone:
            gone()

    async def _may_write(self) -> bool:
        """Waits for a slow reader. Returns False if the client has disconnected."""
        if self.is_slow:
            await self.drain()
        return not self.disconnected

    def _head(self, status: int, headers: RawHeaders) -> bytes:
        self.response_started = True
        lines = [STATUS_LINE[status]]
        for name, value in self.default_headers:
            lines += (name, b": ", value, b"\r\n")
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self._connection.close()
        self.on_response()


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)
