"""Answers one line: the call, its retries, and its text in the output or error file."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import msgspec
import orjson

from stoker.base.errors import (
    InferenceTimeoutError,
    InsufficientCreditsError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    StokerError,
)
from stoker.base.ids import Prefix, new_id
from stoker.base.logs import request_id as current_request_id
from stoker.inference import json_bodies
from stoker.inference.operation import JSON, Operation, WholeAnswer
from stoker.inference.session import CallSession
from stoker.platform.jobs.runner import PASSING
from stoker.platform.web import structure
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import Call
from stoker.runtime.listening import Served
from stoker.store.tables.batches import Batch
from stoker.tenancy.usage.counts import COLLECTED
from stoker.wire.generation_request import Generation
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.lines import LINE, InputLine
from stoker.workloads.batches.parts import LineAnswer
from stoker.workloads.batches.validation import creator

log = logging.getLogger(__name__)

MOST_LOSSES = 5
"""Maximum number of workers that one line may lose."""
ALONE_AFTER = 2
"""Lost workers after which a line is computed while no other such line is. Only the line that ends
workers then reaches `MOST_LOSSES`.
"""
MOST_TIMEOUTS = 3
"""Maximum number of calls of one line that time out, for example because other calls keep the
deployment busy.
"""
STALLED_S = 30.0
"""Seconds without any answer, only with errors that pass, after which the batch is paused."""
_RETRY_FIRST_S, _RETRY_LAST_S = 0.5, 15.0
_STOPPED = "deployment_stopped"


class Halt(StrEnum):
    """Reason why no more lines are computed."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DELETED = "deployment_deleted"
    INPUT_LOST = "input_lost"
    PAUSED = "paused"


class Halting:
    """Whether and why a batch computes no more lines."""

    def __init__(self) -> None:
        self.reason: Halt | None = None
        self.error: StokerError | None = None
        """Error for which the batch is paused."""
        self.event = asyncio.Event()

    def halt(self, reason: Halt, error: StokerError | None = None) -> None:
        if self.reason is None:
            self.reason, self.error = reason, error
            self.event.set()

    async def sleep(self, seconds: float) -> None:
        """Sleeps, but not longer than until the batch halts."""
        try:
            async with asyncio.timeout(seconds):
                await self.event.wait()
        except TimeoutError:
            return


class _BatchSession(CallSession):
    """Session of a line. A line may wait for those before it, so its answer may take longer."""

    def run(self, entry: DirectoryEntry, call: Call | Generation) -> Coroutine[Any, Any, bytes]:
        return self.calls.run(
            entry,
            call,
            self._choose_version,
            wait_s=self._wait_s,
            timeout_s=self.settings.job_timeout_s,
            is_mirrored=True,
        )


class LineCalls:
    """Answers the lines of one batch."""

    def __init__(
        self,
        context: BatchContext,
        row: Batch,
        operation: Operation[Any],
        halting: Halting,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._row = row
        self._operation = operation
        self._halting = halting
        self._clock = clock
        self._caller = creator(row)
        self._alone = asyncio.Lock()
        self._stalled_at: float | None = None
        """Time of the first passing error since the last answer."""

    async def answer(self, line: InputLine) -> LineAnswer | None:
        """Returns the answer to a line, which may be an error. None if the batch halts first."""
        parsed = LINE.decode(line.content or b"")
        losses, timeouts, delay_s = 0, 0, _RETRY_FIRST_S
        while self._halting.reason is None:
            identifier = new_id(Prefix.REQUEST)
            served: list[Served] = []
            try:
                content = await self._attempt(parsed.body, identifier, served, losses)
            except StokerError as error:
                losses += error.code == "worker_lost"
                timeouts += isinstance(error, InferenceTimeoutError)
                if not self._passes(error, losses, timeouts):
                    self._stalled_at = None
                    return _failed(line.number, parsed.custom_id, identifier, error, served)
            except Exception:
                log.exception("line of a batch failed", extra={"batch": self._row.id})
                error = InternalError()
                return _failed(line.number, parsed.custom_id, identifier, error, served)
            else:
                self._stalled_at = None
                return _answered(line.number, parsed.custom_id, identifier, content, served)
            await self._halting.sleep(delay_s)
            delay_s = min(_RETRY_LAST_S, 2 * delay_s)
        return None

    async def _attempt(
        self, body: msgspec.Raw, identifier: str, served: list[Served], losses: int
    ) -> bytes:
        collected, logged = COLLECTED.set(served), current_request_id.set(identifier)
        try:
            if losses < ALONE_AFTER:
                return await self._call(bytes(body))
            async with self._alone:
                return await self._call(bytes(body))
        finally:
            COLLECTED.reset(collected)
            current_request_id.reset(logged)

    async def _call(self, body: bytes) -> bytes:
        calls, operation, settings = self._context.calls, self._operation, self._context.settings
        session = _BatchSession(
            calls,
            self._caller,
            wait_s=settings.load_timeout_s,
            base_url=lambda: settings.public_url or "",
        )
        structure.check(body)
        request = await json_bodies.parse(body, operation.request, has_media=operation.has_media)
        entry = calls.directory.find(self._row.deployment_id)
        if entry is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        answer = await operation.answer(session, entry, request)
        if not isinstance(answer, WholeAnswer):
            await answer.parts.aclose()
        elif answer.media_type == JSON:
            return answer.content
        raise InvalidRequestError(
            f"A batch stores answers in JSON, but this request asks for {answer.media_type}."
        )

    def _passes(self, error: StokerError, losses: int, timeouts: int) -> bool:
        """Returns True if the error is not the line's answer. Halts the batch if waiting does not
        help.
        """
        if isinstance(error, InsufficientCreditsError) or error.code == _STOPPED:
            self._halting.halt(Halt.PAUSED, error)
            return True
        if error.code == "deployment_not_found":
            return True
        if error.code == "worker_lost":
            return losses < MOST_LOSSES
        if isinstance(error, InferenceTimeoutError):
            return timeouts < MOST_TIMEOUTS
        if not isinstance(error, PASSING) or error.is_lasting:
            return False
        now = self._clock()
        if self._stalled_at is None:
            self._stalled_at = now
        elif now - self._stalled_at > STALLED_S:
            self._halting.halt(Halt.PAUSED, error)
        return True


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _UsageOf(msgspec.Struct):
    usage: _Usage | None = None


_USAGE = msgspec.json.Decoder(_UsageOf)


def _answered(
    number: int, custom_id: str, identifier: str, content: bytes, served: list[Served]
) -> LineAnswer:
    if b"\n" in content:
        content = orjson.dumps(orjson.loads(content))
    try:
        usage = _USAGE.decode(content).usage or _Usage()
    except (msgspec.MsgspecError, RecursionError):
        usage = _Usage()
    cached = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    reasoned = usage.completion_tokens_details or usage.output_tokens_details or _Details()
    return LineAnswer(
        number,
        _text(custom_id, _response(200, identifier, content)),
        is_error=False,
        served=served,
        cached_tokens=cached.cached_tokens or 0,
        reasoned_tokens=reasoned.reasoning_tokens or 0,
    )


def _failed(
    number: int, custom_id: str, identifier: str, error: StokerError, served: list[Served]
) -> LineAnswer:
    response = _response(error.status, identifier, orjson.dumps(error.body()))
    return LineAnswer(number, _text(custom_id, response), is_error=True, served=served)


def _response(status: int, identifier: str, content: bytes) -> bytes:
    return b'{"status_code":%d,"request_id":"%b","body":%b}' % (
        status,
        identifier.encode(),
        content,
    )


def unreached(custom_id: str, code: str, message: str) -> bytes:
    """Returns the line of the error file for a request that was not computed."""
    return _text(custom_id, b"null", orjson.dumps({"code": code, "message": message}))


def _text(custom_id: str, response: bytes, error: bytes = b"null") -> bytes:
    return b'{"id":"%b","custom_id":%b,"response":%b,"error":%b}\n' % (
        new_id(Prefix.BATCH_REQUEST).encode(),
        orjson.dumps(custom_id),
        response,
        error,
    )
