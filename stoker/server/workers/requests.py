"""Answers one call in a worker process."""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from stoker.base.config import Settings
from stoker.base.errors import InternalError, InvalidAPIKeyError, StokerError
from stoker.base.logs import request_id
from stoker.inference import json_bodies
from stoker.inference.operation import EVENTS, JSON, Answer, Operation, StreamedAnswer
from stoker.platform.web import error_formats, structure
from stoker.platform.web.error_formats import ErrorFormat, format_of, further_headers
from stoker.platform.web.http import CLIENT_GONE, request_id_of, server_stopping
from stoker.server.edge.answer_transport import JOINED_BYTES
from stoker.server.telemetry.traces import PARENT_HEADERS
from stoker.server.workers.connection import WorkerConnection
from stoker.server.workers.heads import CallHead
from stoker.server.workers.messages import RequestEnded, RequestStarted
from stoker.server.workers.owner import HandOverError, OutdatedError, Owner
from stoker.server.workers.response_heads import LAST_CHUNK, ResponseHead, chunk
from stoker.server.workers.session import WorkerSession

log = logging.getLogger("stoker.http")

_SECOND_NS = 1_000_000_000
_MOST_ATTEMPTS = 3
"""Attempts to build a call for a deployment that changes meanwhile."""


class HttpCall:
    """A call and its response."""

    def __init__(
        self,
        owner: Owner,
        settings: Settings,
        operation: Operation[Any],
        *,
        connection: WorkerConnection,
        head: CallHead,
        body: bytes,
        started: float,
    ) -> None:
        """
        Args:
            started: time of the request's head by `time.perf_counter`.
        """
        self.status = 0
        """Status of the response. 0 before it has begun."""
        self._started = started
        self.path = head.path
        self._owner = owner
        self._operation = operation
        self._connection = connection
        self._head = head
        self._body = body
        self._id = request_id_of(head.headers.get("x-request-id", ""))
        self._error_format = format_of(head.path, head.headers)
        self._first = b""
        """First part of a streamed answer."""
        self._session = WorkerSession(owner, settings, head, connection.number, self._id)

    async def answer(self) -> bool:
        """Answers the call. Returns False if the server must do it."""
        request_id.set(self._id)
        try:
            await self._answer()
        except HandOverError:
            if not self.status:
                return False
            log.exception("request failed")
            self._connection.abort()
        except asyncio.CancelledError:
            self._cancelled()
        except Exception:
            log.exception("request failed")
            if self.status:
                self._connection.abort()
            else:
                self._send_error(InternalError())
        return True

    def abandon(self) -> None:
        """Ends a call whose client has disconnected before its body was complete."""
        request_id.set(self._id)
        self.status = CLIENT_GONE

    def started(self) -> RequestStarted:
        """Returns the message that opens the request's span."""
        headers = self._head.headers
        return RequestStarted(
            self._connection.number,
            self.path,
            self._id,
            time.time_ns() - int((time.perf_counter() - self._started) * _SECOND_NS),
            {name: headers[name] for name in PARENT_HEADERS if name in headers},
        )

    def ended(self) -> RequestEnded:
        """Returns the message that ends the request's span."""
        return RequestEnded(self._connection.number, time.time_ns(), self.status or None)

    def log(self) -> float:
        """Logs the request. Returns its duration in seconds."""
        seconds = time.perf_counter() - self._started
        log.info(
            "request",
            extra={
                "method": "POST",
                "path": self.path,
                "status": self.status,
                "ms": round(seconds * 1000, 2),
            },
        )
        return seconds

    async def _answer(self) -> None:
        try:
            answer = await self._run()
        except StokerError as error:
            await self._refuse(error)
            return
        if isinstance(answer, StreamedAnswer):
            async with aclosing(answer.parts):
                await self._stream(answer)
        else:
            self._send(answer.content, media_type=answer.media_type)

    async def _run(self) -> Answer:
        await self._owner.check_key(self._head.caller)
        body = await self._parsed()
        for _ in range(_MOST_ATTEMPTS):
            try:
                answer = await self._operation.run(self._session, body)
                if isinstance(answer, StreamedAnswer):
                    # Errors before the first part have a status.
                    self._first = await anext(answer.parts)
            except OutdatedError:
                continue
            except StokerError:
                if self._session.forget_hint():
                    continue
                raise
            return answer
        raise HandOverError

    async def _parsed(self) -> Any:
        operation, body = self._operation, self._body
        if not operation.has_media and len(body) > structure.FREE_BYTES:
            structure.check(body)
        return await json_bodies.parse(body, operation.request, has_media=operation.has_media)

    async def _refuse(self, error: StokerError) -> None:
        session = self._session
        if session.counted is None:
            # The key, its limits and the credit are checked before the request.
            try:
                session.counted, first = await self._owner.begin(self._head.caller)
            except StokerError as stopping:
                first = stopping
            error = first or error
        if isinstance(error, InvalidAPIKeyError):
            self._owner.forget(self._head.caller)
        self._send_error(error)

    def _cancelled(self) -> None:
        if self._owner.is_stopping or self._owner.is_gone:
            if self.status:
                self._connection.abort()
            else:
                self._send_error(server_stopping())
        elif not self.status:
            self.status = CLIENT_GONE

    # --- responses ---

    def _send_error(self, error: StokerError) -> None:
        content = error_formats.encoded(error, self._error_format)
        status = error_formats.status_of(error, self._error_format)
        self._send(content, status=status, before=error.headers)

    def _send(
        self,
        content: bytes,
        *,
        media_type: str = JSON,
        status: int = 200,
        before: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        head = self._response_head(media_type, len(content), status=status, before=before)
        if len(content) <= JOINED_BYTES:
            self._connection.write(head + content)
        else:
            self._connection.write(head)
            self._connection.write(content)

    async def _stream(self, answer: StreamedAnswer) -> None:
        connection = self._connection
        self.status = 200
        head = self._response_head(answer.media_type, None)
        connection.write(head + chunk(self._first))
        try:
            async for part in answer.parts:
                await connection.drain()
                if part:
                    connection.write(chunk(part))
        except StokerError as error:
            if answer.media_type != EVENTS:
                raise
            connection.write(chunk(error_formats.event_of(error, self._error_format)))
        connection.write(LAST_CHUNK)

    def _response_head(
        self,
        media_type: str,
        length: int | None,
        *,
        status: int = 200,
        before: Mapping[str, str] | None = None,
    ) -> bytes:
        session, counted = self._session, self._session.counted or {}
        is_anthropic = self._error_format is ErrorFormat.ANTHROPIC
        return ResponseHead(
            request_id=self._id,
            status=status,
            media_type=media_type,
            length=length,
            before=before or {},
            version_id=session.version_id if before is None else None,
            counted=further_headers(counted) if is_anthropic else counted,
            closes=self._connection.closes,
            varies=bool(session.settings.cors_origins),
        ).content()
