"""The gateway's end of one replica: its socket, its calls in flight, its vital signs."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stoker.errors import InferenceError, InvalidMediaError, InvalidRequestError, StokerError
from stoker.runtime.interface import Call, LoadError, OnProgress, Reason, Status
from stoker.runtime.pool.answers import Answer, Told
from stoker.runtime.pool.transport import Channel
from stoker.wire import flight
from stoker.wire.generation_request import Generation
from stoker.wire.protocol import (
    Adopt,
    Batches,
    Calibrated,
    Cancel,
    Cancelled,
    Execution,
    Failure,
    FromReplica,
    Generate,
    Heartbeat,
    Loaded,
    LoadFailed,
    Loading,
    Parts,
    Progress,
    Result,
    Sharing,
    Shutdown,
    ToReplica,
    Work,
    pack,
)

log = logging.getLogger(__name__)

_decode = msgspec.msgpack.Decoder(FromReplica).decode

KEEP_ALIVE_S = 10.0
"""Between signs of life in a stream that has nothing else to send."""

PROVED_S, PROVED_ANSWERS = 60.0, 16
"""A replica that has answered so much, or lived so long, does not end of how it was started."""

_call_ids = itertools.count(1)


class WorkerLostError(Exception):
    """The replica ended with the call in flight. `begun`: it was being worked on."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__("the replica ended")
        self.begun = begun


@dataclass(eq=False)
class Replica:
    """States: starting → ready → stopping → gone. The pool that owns it decides the moves."""

    id: str
    flight_path: Path
    generation: int
    channel: Channel
    clock: Callable[[], float] = time.monotonic
    status: Status = Status.STARTING
    progress: float = 0.0
    memory_bytes: int | None = None
    own_bytes: int = 0
    """What would be free if it ended; 0: not measured yet."""
    engine: str = ""
    """What runs the model now."""
    cache_usage: float | None = None
    """The share of the key-value cache that requests hold, of language models."""
    batches: Batches = field(default_factory=Batches)
    busy_s: float = 0.0
    """Time spent in forward passes."""
    convertible: bool = False
    last_used: float = 0.0
    ready_at: float = 0.0
    stop_by: float = math.inf
    """While it stops: when it is killed."""
    is_draining: bool = False
    """It ends once it has answered what it has."""
    answered: int = 0
    on_calibrated: Callable[[str, int], None] = lambda _engine, _budget: None
    on_sharing: Callable[[Sharing], None] = lambda _sharing: None
    execution: Execution | None = None
    """What it runs on, where that is OpenVINO."""
    condemned: Reason | None = None
    """Why the pool is killing it."""
    pending: dict[int, "Answer"] = field(default_factory=dict[int, "Answer"])
    _cancelled: dict[int, Told] = field(default_factory=dict[int, Told])
    """Calls that were cancelled, of which it has not told yet what they came to."""
    _beat_at: float = 0.0
    _began_with_it: float = 0.0
    """With the execution."""
    _answered_before: int = 0
    _work_done: int = 0
    _moved_at: float = 0.0

    def __post_init__(self) -> None:
        self._beat_at = self._moved_at = self.last_used = self.clock()
        self.channel.listen(self._receive)
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody awaits it where the load has timed out already.
        self.loaded.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def outstanding(self) -> int:
        return len(self.pending)

    async def call(
        self,
        call: Call | Generation,
        told: Told,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        """Send the work and await its answer. Cancelling tells the replica to drop it.

        What was worked on, and how long, is added to `told`.
        """
        with self._outstanding(call, told) as answer:
            answer.on_progress = on_progress
            content = b""
            while part := await answer.next():
                content += part
            return content

    async def stream(
        self,
        call: Call | Generation,
        told: Told,
        silence_s: float,
        keep_alive: bytes,
    ) -> AsyncGenerator[bytes]:
        """The answer's parts; closing tells the replica to drop the work.

        Raises `TimeoutError` after so long a silence: neither parts nor progress. `keep_alive` is
        among the parts whenever there was nothing to send for a while.
        """
        with self._outstanding(call, told) as answer:
            begun = False
            while True:
                silent = self.clock() - answer.heard_at
                if silent >= silence_s:
                    raise TimeoutError
                try:
                    part = await answer.next(min(KEEP_ALIVE_S, silence_s - silent))
                except TimeoutError:
                    if begun and keep_alive:
                        yield keep_alive
                    continue
                if not part:
                    return
                begun = True
                yield part

    @contextmanager
    def _outstanding(self, call: Call | Generation, told: Told) -> Generator[Answer]:
        identifier = next(_call_ids)
        if not self.pending:
            self._moved_at = self.clock()
        answer = self.pending[identifier] = Answer(self.clock(), told)
        self.last_used = self.clock()
        try:
            self._send(_message(identifier, call))
            yield answer
        finally:
            self.pending.pop(identifier, None)
            if not answer.ended:
                told.is_awaited = True
                self._cancelled[identifier] = told
                self._send(Cancel(identifier))
            self.last_used = self.clock()
            if self.is_draining and not self.pending:
                self.shut_down()

    def adopt(self, execution: Execution) -> None:
        """Have it go on with the converted model. Once: it stays as it is where that fails."""
        self.convertible = False
        self.begin_with(execution)
        self._send(Adopt(execution))

    def begin_with(self, execution: Execution) -> None:
        """From now on, it runs on this."""
        self.execution = execution
        self._began_with_it, self._answered_before = self.clock(), self.answered

    @property
    def has_proved_its_execution(self) -> bool:
        """Whether it has run on it for so long that what happens now has another cause."""
        answers = self.answered - self._answered_before
        return _is_proved(self.clock() - self._began_with_it, answers)

    @property
    def was_preparing(self) -> bool:
        """Of one that has ended: whether it did over an input, with nothing in the engine."""
        preparing, running = flight.read_slots(self.flight_path)
        return bool(preparing) and not running

    @property
    def has_proved_itself(self) -> bool:
        """Whether it was ready for so long that its end is not that of a start."""
        return _is_proved(self.clock() - self.ready_at, self.answered)

    def shut_down(self) -> None:
        self.is_draining = False
        self._send(Shutdown())

    def shut_down_when_done(self) -> None:
        self.is_draining = True
        if not self.pending:
            self.shut_down()

    def trouble(self, heartbeat_timeout_s: float, stall_timeout_s: float) -> str | None:
        """Why a ready replica should be replaced, or None: silent, or alive without progress."""
        now = self.clock()
        if now - self._beat_at > heartbeat_timeout_s:
            return f"silent for {now - self._beat_at:.0f} s"
        if self.pending and now - self._moved_at > stall_timeout_s:
            return f"no progress on accepted work for {now - self._moved_at:.0f} s"
        return None

    def lost(self, how: str, *, out_of_memory: bool = False, has_another_way: bool = False) -> None:
        """The process has ended: fail what was in flight, telling what it was working on."""
        self._fail_load(
            LoadError(
                f"the process ended while loading ({how}).",
                out_of_memory=out_of_memory,
                has_another_way=has_another_way,
            )
        )
        begun = flight.read(self.flight_path)
        for identifier, answer in list(self.pending.items()):
            answer.fail(WorkerLostError(begun=identifier in begun))
        self._end_cancelled()

    def close(self) -> None:
        self._end_cancelled()
        self.channel.close()
        self.flight_path.unlink(missing_ok=True)

    def _receive(self, frames: list[bytes]) -> None:
        message: FromReplica = _decode(frames[0])
        self._beat_at = self.clock()
        match message:
            case Parts():
                self._moved_at = self._beat_at
                self._share_out(message, frames[1])
            case Progress():
                self._moved_at = self._beat_at
                self._tell_progress(message)
            case Result():
                self._moved_at = self._beat_at
                self._answer(message, frames[1])
            case Failure():
                self._moved_at = self._beat_at
                if answer := self.pending.get(message.id):
                    answer.fail(_error(message))
                self._end_cancelled(message.id)
            case Cancelled():
                self._end_cancelled(message.id, message.counts)
            case Heartbeat():
                self._beat(message)
            case Loading():
                self.progress = message.progress
            case Loaded():
                self._load(message)
            case LoadFailed():
                self._fail_load(
                    LoadError(
                        message.message,
                        out_of_memory=message.out_of_memory,
                        lasting=message.lasting,
                    )
                )
            case Calibrated():
                self.on_calibrated(message.engine, message.batch_budget)

    def _load(self, loaded: Loaded) -> None:
        self.progress = 1.0
        self.convertible = loaded.convertible
        self._moved_at = self._beat_at
        if loaded.sharing:
            self.on_sharing(loaded.sharing)
        if not self.loaded.done():
            self.loaded.set_result(None)

    def _answer(self, result: Result, content: bytes) -> None:
        self.answered += 1
        if answer := self.pending.get(result.id):
            answer.told.counts.update(result.counts)
            answer.told.times.update(result.times)
            answer.add(content)
            answer.end()
        self._end_cancelled(result.id, result.counts)

    def _end_cancelled(
        self, identifier: int | None = None, counts: Mapping[str, int] | None = None
    ) -> None:
        """Of one cancelled call, or of all, nothing more will be told."""
        for one in [identifier] if identifier is not None else list(self._cancelled):
            if told := self._cancelled.pop(one, None):
                told.complete(counts or {})

    def _tell_progress(self, progress: Progress) -> None:
        if answer := self.pending.get(progress.id):
            answer.heard_at = self._beat_at
            if answer.on_progress:
                answer.on_progress(progress.fraction)

    def _share_out(self, parts: Parts, content: bytes) -> None:
        start = 0
        for identifier, size in zip(parts.ids, parts.sizes, strict=True):
            if answer := self.pending.get(identifier):
                answer.heard_at = self._beat_at
                answer.add(content[start : start + size])
            start += size

    def _fail_load(self, problem: LoadError) -> None:
        if not self.loaded.done():
            self.loaded.set_exception(problem)

    def _send(self, message: ToReplica) -> None:
        self.channel.send(pack(message))

    def _beat(self, beat: Heartbeat) -> None:
        self.memory_bytes = beat.memory_bytes
        self.own_bytes = beat.own_bytes
        self.busy_s = beat.busy_s
        self.engine = beat.engine
        self.cache_usage = beat.cache_usage
        self.batches = beat.batches
        if beat.progress != self._work_done or not beat.accepted:
            self._work_done = beat.progress
            self._moved_at = self._beat_at


def _is_proved(seconds: float, answers: int) -> bool:
    return answers >= PROVED_ANSWERS or (answers > 0 and seconds >= PROVED_S)


def _message(identifier: int, call: Call | Generation) -> ToReplica:
    if isinstance(call, Generation):
        return Generate(identifier, call)
    return Work(
        identifier,
        call.task,
        list(call.items),
        dict(call.parameters),
        call.single,
        dict(call.finishing),
        call.stream,
    )


_ERRORS: Mapping[str, type[StokerError]] = {
    "invalid_request": InvalidRequestError,
    "invalid_media": InvalidMediaError,
    "context_length_exceeded": InvalidRequestError,
    "inference_failed": InferenceError,
}


def _error(failure: Failure) -> StokerError:
    code = failure.code if failure.code in _ERRORS else InferenceError.code
    return _ERRORS[code](failure.message, code=code, param=failure.param)
