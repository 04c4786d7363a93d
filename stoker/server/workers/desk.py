"""The server's side of one worker process: checks and runs its calls."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass

from stoker.base.errors import InternalError, StokerError
from stoker.base.logs import request_id
from stoker.inference.calls import Calls
from stoker.inference.session import CallSession
from stoker.platform.web.disk import full_disk
from stoker.platform.web.outage import lost_database, lost_store
from stoker.platform.web.principal import Principal, Scope, work_for
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import Call
from stoker.runtime.packed_calls import PackedCall
from stoker.server.telemetry.traces import RequestSpan, Traces
from stoker.server.workers.messages import (
    CallerKey,
    CallModel,
    CheckCaller,
    ErrorReply,
    Hint,
    LookUp,
    Question,
    RequestEnded,
    RequestStarted,
    StreamEnd,
    StreamPart,
    StreamStart,
    ToWorker,
    Verdict,
    WholeReply,
    encode,
)
from stoker.tenancy.keys.auth import count_request
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.limits import RateLimits
from stoker.wire.errors import ErrorFields
from stoker.wire.generation_request import Generation

log = logging.getLogger("stoker.http")

_MOST_NUMBERS = 10_000

Send = Callable[[Sequence[bytes]], None]


@dataclass(frozen=True, kw_only=True)
class CallChecks:
    """Parts of the server that check and trace a worker's requests."""

    calls: Calls
    keyring: Keyring
    limits: RateLimits
    takes_packed: bool
    """True if the runtime sends packed calls unchanged."""
    traces: Traces | None = None


class Desk:
    """Answers the requests of one worker."""

    def __init__(self, checks: CallChecks, send: Send, answered: Callable[[int], None]) -> None:
        """
        Args:
            answered: receives the number of a connection after its call has ended.
        """
        self._checks = checks
        self._send = send
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._numbers: dict[int, DirectoryEntry] = {}
        """Entries that the worker knows, by number."""
        self._last_number = 0
        self._spans: dict[int, tuple[RequestSpan, str]] = {}
        """Spans of the worker's requests with their paths, by connection."""

    def receive(self, message: Question, frames: Sequence[bytes]) -> None:
        parent = nullcontext()
        match message:
            case CallModel():
                work = self._call(message, frames[1:])
                if traced := self._spans.get(message.connection):
                    parent = traced[0].as_parent()
            case LookUp():
                work = self._look_up(message)
            case CheckCaller():
                work = self._check_caller(message)
        with parent:
            self._tasks[message.id] = self._loop.create_task(work)

    def drop(self, identifier: int) -> None:
        """Cancels a request whose client is gone."""
        if task := self._tasks.pop(identifier, None):
            task.cancel()

    def close(self) -> None:
        """Cancels all requests."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        for span, path in self._spans.values():
            # The worker has ended without a response.
            span.end(path, 0)
        self._spans.clear()

    # --- traces ---

    def open_span(self, started: RequestStarted) -> None:
        """Opens the span of a request."""
        if traces := self._checks.traces:
            span = traces.open("POST", started.parent, started.request_id, started.start_ns)
            self._spans[started.connection] = span, started.path

    def end_span(self, ended: RequestEnded) -> None:
        """Ends the span of a request. Drops it if the server answers the request, because that has
        a span of its own.
        """
        traced = self._spans.pop(ended.connection, None)
        if traced and ended.status is not None:
            span, path = traced
            span.end(path, ended.status, ended.end_ns)

    # --- requests ---

    async def _look_up(self, message: LookUp) -> None:
        hint = Hint(message.id, is_valid=False)
        try:
            caller = await self._principal(message.caller)
            # An operator's request names an account, which only the database knows.
            hint = Hint(message.id, is_valid=caller.scope is not Scope.OPERATOR)
            if message.names_model:
                entry = await self._checks.calls.directory.resolve(caller, message.model)
                hint = Hint(message.id, True, self._number_of(entry), entry)
        except StokerError:
            # The server itself answers the request with the error.
            pass
        except Exception:
            log.exception("request of an HTTP worker failed")
        self._reply(hint)
        self._tasks.pop(message.id, None)

    async def _check_caller(self, message: CheckCaller) -> None:
        headers: dict[str, str] = {}
        try:
            caller = await self._principal(message.caller)
            await self._count(caller, headers)
            self._checks.calls.credits.check(caller.account_id)
            self._reply(Verdict(message.id, headers))
        except Exception as error:
            self._fail(message.id, error, headers)
        self._tasks.pop(message.id, None)

    async def _call(self, message: CallModel, frames: Sequence[bytes]) -> None:
        headers: dict[str, str] = {}
        request_id.set(message.request_id)
        try:
            caller = await self._principal(message.caller)
            work_for(caller)
            entry, problem = await self._resolve(caller, message.model)
            if entry is not None and self._numbers.get(message.entry) is not entry:
                self._reply(Hint(message.id, True, self._number_of(entry), entry))
                return
            await self._count(caller, headers)
            session = CallSession(
                self._checks.calls,
                caller,
                wait_s=message.wait_s,
                headers=message.headers,
                user=message.user,
            )
            if entry is None:
                raise problem or InternalError()
            call = self._packed(entry, message.id, frames)
            if message.is_stream:
                await self._stream(message, session, entry, call, headers)
            else:
                content = await session.run(entry, call)
                self._reply(WholeReply(message.id, session.version_id, headers), content)
        except Exception as error:
            self._fail(message.id, error, headers)
        finally:
            self._tasks.pop(message.id, None)
            self._answered(message.connection)

    async def _stream(
        self,
        message: CallModel,
        session: CallSession,
        entry: DirectoryEntry,
        call: Call | Generation,
        headers: dict[str, str],
    ) -> None:
        parts = session.stream(
            entry, call, timeout_s=message.timeout_s, keep_alive=message.keep_alive
        )
        async with aclosing(parts):
            first = await anext(parts)
            self._reply(StreamStart(message.id, session.version_id, headers), first)
            async for part in parts:
                self._reply(StreamPart(message.id), part)
        self._reply(StreamEnd(message.id))

    # --- checks ---

    async def _principal(self, named: CallerKey) -> Principal:
        return await self._checks.keyring.check_digest(named.public_id, named.secret_sha256)

    async def _count(self, caller: Principal, headers: dict[str, str]) -> None:
        """Counts a request for the key's limits. Fills in the headers of the response."""
        if caller.limits:
            await self._checks.limits.ready(caller)
            count_request(self._checks.limits, caller, headers.update)

    async def _resolve(
        self, caller: Principal, model: str | None
    ) -> tuple[DirectoryEntry | None, StokerError | None]:
        try:
            return await self._checks.calls.directory.resolve(caller, model), None
        except StokerError as error:
            return None, error

    def _packed(
        self, entry: DirectoryEntry, identifier: int, frames: Sequence[bytes]
    ) -> Call | Generation:
        call = PackedCall.of(identifier, frames)
        is_unchanged = entry.adapter is None and not entry.mirrors and self._checks.takes_packed
        return call if is_unchanged else call.unpacked()

    def _number_of(self, entry: DirectoryEntry) -> int:
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        self._last_number += 1
        self._numbers[self._last_number] = entry
        return self._last_number

    # --- replies ---

    def _reply(self, message: ToWorker, *frames: bytes) -> None:
        self._send([encode(message), *frames])

    def _fail(self, identifier: int, error: Exception, headers: dict[str, str]) -> None:
        known = error if isinstance(error, StokerError) else _known(error)
        self._reply(ErrorReply(identifier, headers, ErrorFields.of(known)))


def _known(error: Exception) -> StokerError:
    known = full_disk(error) or lost_database(error) or lost_store(error)
    if known is None:
        log.error("request failed", exc_info=error)
    return known or InternalError()
