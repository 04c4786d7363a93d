"""HTTP/1.1 of uvicorn and httptools, with limits on the size and duration of requests."""

import asyncio
import logging
from collections import deque
from enum import Enum
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stoker.base.errors import (
    CapacityError,
    HeadersTooLargeError,
    InvalidRequestError,
    RequestTimeoutError,
    StokerError,
    URITooLongError,
)
from stoker.base.ids import Prefix, new_id
from stoker.platform.web.exchange import EXCHANGE
from stoker.server.edge.answer_transport import AnswerTransport
from stoker.server.edge.answers import answer
from stoker.server.edge.connections import Connections, Ended, RefusalReason
from stoker.server.edge.exchange import HttpExchange
from stoker.server.edge.headers import ambiguity, has_body
from stoker.server.edge.kernel import unsent
from stoker.server.edge.limits import (
    HEAD_BYTES,
    HEADERS,
    IDLE_S,
    PIPELINED,
    PROGRESS_BYTES,
    TARGET_BYTES,
)

log = logging.getLogger("stoker.http")

_LINGER_S = 2.0
_LINGER_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes that are read and discarded after a rejection. A connection that is
closed with unread bytes is reset, and its peer may not receive the response.
"""
_RETRY_AFTER_S = 5
_PER_HEADER = 4
"""Bytes around a header's name and value."""
_PER_BODY_BYTE = 16
"""Maximum overhead in bytes per byte of a body. Chunks of a single byte have five."""


class _Phase(Enum):
    HEAD = "head"
    """No request yet, or only a part of its head."""
    REQUEST = "request"
    """At least one request is in progress."""
    REST = "rest"
    """The request was answered before its body ended."""
    IDLE = "idle"
    ENDING = "ending"
    """The connection was rejected and the response was sent."""


class _RefusedError(Exception):
    """Error that the parser's callbacks raise. The parser passes it on as the context of its own
    error.
    """

    def __init__(self, error: StokerError, reason: Ended) -> None:
        super().__init__(error.message)
        self.error = error
        self.reason = reason


class HttpConnection(HttpToolsProtocol):
    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._limits = connections.limits
        self._phase = _Phase.HEAD
        self._since = 0.0
        """Start of the phase. For each head after the first, the arrival of its first byte."""
        self._head_bytes = 0
        self._headers = 0
        self._fruitless = 0
        """Bytes since the last head or the last body data, minus the allowed overhead of a body."""
        self._is_receiving = False
        """True if the head of the latest message is complete and the message is not."""
        self._is_deaf = False
        self._discarded = 0
        self._exchange: HttpExchange | None = None
        """The latest request. Uvicorn knows it as `cycle`."""
        self._waiting: deque[HttpExchange] = deque()
        """Requests that wait for the answer to an earlier one, oldest first."""
        self._answering: HttpExchange | None = None
        """The request in progress."""
        self._body_bytes = 0
        self._body_mark: tuple[float, int] | None = None
        self._unread_mark: tuple[float, int] | None = None

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        refused = self._admit()
        if refused is not None:
            self._turn_away(refused)

    def _admit(self) -> RefusalReason | None:
        return self._connections.admit(self, self.client[0] if self.client else None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        self._abandon()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.ENDING:
            self._discard(len(data))
            return
        if self._is_deaf:
            return
        if self.parser is None:
            return
        self._fruitless += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The following data may be any protocol other than HTTP/1.1.
            self._is_deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, _RefusedError):
                message = "The request is not valid HTTP/1.1 (RFC 9112)."
                cause = _RefusedError(InvalidRequestError(message), Ended.INVALID)
            self._refuse(cause.error, cause.reason)
        else:
            if self._fruitless > HEAD_BYTES:
                self._refuse(_too_large(), Ended.TOO_LARGE)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._headers = 0
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)
        if self._head_bytes > TARGET_BYTES:
            message = f"The path and query exceed the limit of {TARGET_BYTES} bytes."
            raise _RefusedError(URITooLongError(message), Ended.TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._head_bytes += len(name) + len(value) + _PER_HEADER
        if self._headers > HEADERS or self._head_bytes > HEAD_BYTES:
            raise _RefusedError(_too_large(), Ended.TOO_LARGE)
        # Trailers arrive while the request is being answered and are not used, so they are ignored.
        if self._is_receiving:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if len(self._waiting) >= PIPELINED:
            message = f"More than {PIPELINED} requests wait for an answer on this connection."
            raise _RefusedError(InvalidRequestError(message), Ended.TOO_LARGE)
        if self.parser and self.parser.should_upgrade() and has_body(self.headers):
            message = (
                "This server does not upgrade connections, so a request with the header Upgrade "
                "cannot have a body. Use HTTP/1.1."
            )
            raise _RefusedError(InvalidRequestError(message, param="upgrade"), Ended.INVALID)
        if problem := ambiguity(self.headers):
            raise _RefusedError(problem, Ended.INVALID)
        self._fruitless = 0
        self._begin_exchange()
        self._is_receiving = True
        self._body_mark = None
        if self._phase is not _Phase.REQUEST:
            self._phase = _Phase.REQUEST
            self._connections.work(self)

    def _begin_exchange(self) -> None:
        """Starts the request, or queues it behind an earlier one. Replaces uvicorn's
        `on_headers_complete`.
        """
        parser, scope = self.parser, self.scope
        if parser is None:
            return
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        exchange = HttpExchange(
            scope,
            self,
            keep_alive=version != "1.0"
            and parser.should_keep_alive()
            and not self._connections.is_draining,
            on_response=self.on_response_complete,
        )
        cast("dict[str, Any]", scope)[EXCHANGE] = exchange
        before, self.cycle, self._exchange = self._exchange, exchange, exchange
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._fruitless = max(0, self._fruitless - _PER_BODY_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        self._fruitless = 0
        super().on_message_complete()
        if self._phase is _Phase.REST:
            self._enter(_Phase.IDLE)

    # Callbacks of uvicorn's request cycle.

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
        else:
            self._enter(_Phase.REST if self._is_receiving else _Phase.IDLE)
            self._connections.wait(self)

    def _start(self, exchange: HttpExchange) -> None:
        self._answering = exchange
        exchange.transport = cast("asyncio.Transport", AnswerTransport(self.transport, self.loop))
        self._start_asgi_task(exchange, cast("Any", self).app)

    # Methods for `Connections`.

    def check(self, now: float) -> None:
        """Implements `LimitedConnection.check`."""
        if self._is_unread(now):
            self._end(Ended.ANSWER_TIMEOUT)
        elif self.transport.is_closing():
            return
        elif self._phase is _Phase.REQUEST:
            if self._is_body_late(now):
                message = (
                    f"Less than {PROGRESS_BYTES} bytes of the body arrived in "
                    f"{self._limits.body_s:g} s, and the body is not complete."
                )
                self._refuse(RequestTimeoutError(message), Ended.BODY_TIMEOUT)
        elif self._phase is _Phase.HEAD:
            if now - self._since > self._limits.head_s:
                message = f"No complete request head arrived within {self._limits.head_s:g} s."
                self._refuse(RequestTimeoutError(message), Ended.HEAD_TIMEOUT)
        elif self._phase is _Phase.IDLE:
            if now - self._since > IDLE_S:
                self._end(Ended.IDLE)
        elif self._phase is _Phase.REST:
            if now - self._since > self._limits.body_s:
                self._end(Ended.BODY_TIMEOUT)
        elif now - self._since > _LINGER_S:
            self.transport.abort()

    def give_way(self) -> None:
        """Implements `LimitedConnection.give_way`."""
        self._close()

    def _is_unread(self, now: float) -> bool:
        """Returns True if the peer has stopped reading the response for longer than the time
        limit.
        """
        unread_bytes = self.transport.get_write_buffer_size()
        writes_more = self._phase is _Phase.REQUEST and not self.flow.write_paused
        if not unread_bytes or (writes_more and not self.transport.is_closing()):
            self._unread_mark = None
            return False
        unread_bytes += unsent(self.transport)
        if self._unread_mark is not None:
            since, before = self._unread_mark
            # The buffer grows only after most of it was read.
            if before - PROGRESS_BYTES < unread_bytes <= before:
                return now - since > self._limits.answer_s
        self._unread_mark = (now, unread_bytes)
        return False

    def _is_body_late(self, now: float) -> bool:
        cycle = self._answering
        is_awaited = (
            cycle is self.cycle
            and self._is_receiving
            and not self.flow.read_paused
            and not (cycle and cycle.waiting_for_100_continue)
        )
        if not is_awaited:
            self._body_mark = None
            return False
        if self._body_mark is not None:
            since, before = self._body_mark
            if self._body_bytes - before < PROGRESS_BYTES:
                return now - since > self._limits.body_s
        self._body_mark = (now, self._body_bytes)
        return False

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._since = self.loop.time()

    def _may_answer(self) -> bool:
        """Returns True if the next bytes to the peer would answer the rejected message."""
        current = self._answering
        if self._is_receiving:
            return current is self.cycle and current is not None and not current.response_started
        return current is None or current.response_complete

    def _refuse(self, error: StokerError, reason: Ended) -> None:
        """Ends the connection, with an error response if one can be sent."""
        if self._phase is _Phase.ENDING or self.transport.is_closing():
            return
        if not self._may_answer() or self.transport.get_write_buffer_size():
            self._end(reason)
            return
        self._connections.ended[reason] += 1
        identifier = new_id(Prefix.REQUEST)
        log.info(
            "request refused",
            extra={
                "request_id": identifier,
                "status": error.status,
                "code": error.code,
                "reason": reason,
                "client": self.client[0] if self.client else None,
            },
        )
        self._say_last(answer(error, identifier))

    def _turn_away(self, refused: RefusalReason) -> None:
        origin = "from this address" if refused is RefusalReason.ADDRESS else "to this server"
        error = CapacityError(
            f"Too many connections {origin} are open. Close idle ones, or try again.",
            code="too_many_connections",
            retry_after_s=_RETRY_AFTER_S,
        )
        stays = self._connections.linger(self)
        self._say_last(answer(error, new_id(Prefix.REQUEST)))
        if not stays:
            self.transport.close()

    def _say_last(self, content: bytes) -> None:
        self._abandon()
        self.transport.write(content)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._enter(_Phase.ENDING)
        self.flow.resume_reading()

    def _end(self, reason: Ended) -> None:
        self._connections.ended[reason] += 1
        self._abandon()
        self._close()

    def _close(self) -> None:
        if self.transport.get_write_buffer_size():
            # A plain close would keep the connection open until the peer has read everything.
            self.transport.abort()
        else:
            self.transport.close()

    def _abandon(self) -> None:
        """Cancels the work for all requests of this connection."""
        for exchange in (self._answering, *self._waiting):
            if exchange is not None:
                exchange.abandon()
        self._waiting.clear()
        self.flow.resume_writing()

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > _LINGER_BYTES:
            self.transport.abort()


def _too_large() -> HeadersTooLargeError:
    return HeadersTooLargeError(
        "The request's head, or the framing of its body, exceeds the limit of "
        f"{HEAD_BYTES} bytes or {HEADERS} headers."
    )
