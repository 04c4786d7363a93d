"""Gateway side of one replica: its socket, calls in flight and vital signs."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from stoker.base.fairness import CURRENT_CALLER
from stoker.runtime.interface import Call, LoadError, OnProgress
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.answers import Answer, CallStats
from stoker.runtime.pool.transport import Channel
from stoker.runtime.pool.vitals import Vitals
from stoker.runtime.pool.work_messages import error_of, message_of
from stoker.wire.generation_request import Generation
from stoker.wire.notices import Notice, bounded
from stoker.wire.protocol import (
    Adopt,
    Adopted,
    Calibrated,
    Cancel,
    Cancelled,
    Execution,
    Failure,
    FromReplica,
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
    pack,
)

log = logging.getLogger(__name__)

_MOST_HEAD_BYTES = 4 << 20
"""Maximum bytes of a message without its content. Decoding it blocks the event loop."""
_decode = msgspec.msgpack.Decoder(FromReplica).decode

KEEP_ALIVE_S = 10.0
"""Seconds between keep-alives in a stream without other parts."""

PROVED_S, PROVED_ANSWERS = 60.0, 16
"""Seconds or answers after which a replica's end is not attributed to its start."""

_call_ids = itertools.count(1)


class Flight(Protocol):
    """Flight record of a replica (`stoker.wire.flight`), which outlives its process."""

    def read_slots(self) -> tuple[set[int], set[int]]:
        """Returns the ids of the calls in preparation or finishing, and of those in the engine.

        Both are empty if no record exists.
        """
        ...

    def remove(self) -> None:
        """Removes the record if it exists."""
        ...


class WorkerLostError(Exception):
    """Raised if the replica ended with the call in flight. `begun` is True if it was working on the
    call.
    """

    def __init__(self, *, begun: bool, why: str = "") -> None:
        """
        Args:
            why: reason for killing the replica. Empty if it ended by itself.
        """
        super().__init__("the replica ended")
        self.begun = begun
        self.why = why


@dataclass(eq=False)
class ReplicaHandle:
    """A replica. Its states are starting → ready → stopping → ended. Its pool decides the
    transitions.
    """

    id: str
    flight: Flight
    generation: int
    channel: Channel
    clock: Callable[[], float] = time.monotonic
    status: Status = Status.STARTING
    progress: float = 0.0
    """Loading progress, 0 to 1."""
    convertible: bool = False
    """True if the replica can switch to a converted model."""
    notices: Sequence[Notice] = ()
    """Notices about its model, reported after loading."""
    last_used: float = 0.0
    ready_at: float = 0.0
    stop_deadline: float = math.inf
    """Time at which a stopping replica is killed."""
    is_draining: bool = False
    """True if the replica ends after its current calls."""
    answered: int = 0
    on_calibrated: Callable[[str, int], None] = lambda _engine, _budget: None
    on_sharing: Callable[[Sharing], None] = lambda _sharing: None
    execution: Execution | None = None
    """OpenVINO execution that the replica uses or is about to use. None for other engines."""
    _is_adopting: bool = False
    """True while the replica has not reported the outcome of the adoption."""
    kill_reason: Reason | None = None
    """Reason that the pool kills the replica."""
    kill_details: str = ""
    """Observation that led to the kill, as in `it was silent for 16 s`."""
    pending: dict[int, "Answer"] = field(default_factory=dict[int, "Answer"])
    _cancelled: dict[int, CallStats] = field(default_factory=dict[int, CallStats])
    """Cancelled calls with an outcome that is not reported yet."""
    _grace_s: float = 0.0
    _execution_since: float = 0.0
    _answered_before: int = 0
    """Number of answers before the replica started to use the execution."""

    def __post_init__(self) -> None:
        self.vitals = Vitals(self.clock)
        self.last_used = self.clock()
        self.channel.listen(self._receive)
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The load may have timed out already, and then no task awaits the future.
        self.loaded.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def outstanding(self) -> int:
        return len(self.pending)

    async def call(
        self,
        call: Call | Generation,
        stats: CallStats,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        """Sends the call and awaits its answer. Cancelling makes the replica drop the work.

        The amounts and durations of the work are added to `stats`.
        """
        with self._outstanding(call, stats) as answer:
            answer.on_progress = on_progress
            content = b""
            while part := await answer.next():
                content += part
            return content

    async def stream(
        self,
        call: Call | Generation,
        stats: CallStats,
        silence_s: float,
        keep_alive: bytes,
    ) -> AsyncGenerator[bytes]:
        """Yields the answer's parts. Closing the generator makes the replica drop the work.

        Raises `TimeoutError` after `silence_s` seconds without parts or progress. `keep_alive` is
        yielded whenever no part was available for a while.
        """
        with self._outstanding(call, stats) as answer:
            begun = False
            while True:
                silent = self.clock() - answer.last_activity_at
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
    def _outstanding(self, call: Call | Generation, stats: CallStats) -> Generator[Answer]:
        identifier = next(_call_ids)
        if not self.pending:
            self.vitals.work_begins()
        answer = self.pending[identifier] = Answer(self.clock(), stats)
        self.last_used = self.clock()
        try:
            self._send(message_of(identifier, call, CURRENT_CALLER.get().key))
            yield answer
        finally:
            self.pending.pop(identifier, None)
            if not answer.ended:
                stats.is_pending = True
                self._cancelled[identifier] = stats
                self._send(Cancel(identifier))
            self.last_used = self.clock()
            if self.is_draining and not self.pending:
                self.shut_down(self._grace_s)

    def adopt(self, execution: Execution) -> None:
        """Makes the replica switch to the converted model. Tried once: if it fails, the replica
        stays as it is.
        """
        self.convertible = False
        self.execution, self._is_adopting = execution, True
        self._send(Adopt(execution))

    def begin_with(self, execution: Execution) -> None:
        """Records that the replica uses this execution from now on."""
        self.execution, self._is_adopting = execution, False
        self._execution_since, self._answered_before = self.clock(), self.answered

    @property
    def has_proved_its_execution(self) -> bool:
        """True if the replica has used its execution so long that a problem now has another
        cause.
        """
        answers = self.answered - self._answered_before
        is_proved = _is_proved(self.clock() - self._execution_since, answers)
        return is_proved and not self._is_adopting

    @property
    def was_preparing(self) -> bool:
        """For an ended replica: True if it ended while preparing an input, with no call in the
        engine.
        """
        preparing, running = self.flight.read_slots()
        return bool(preparing) and not running

    @property
    def has_proved_itself(self) -> bool:
        """True if the replica was ready so long that its end is not caused by its start."""
        return _is_proved(self.clock() - self.ready_at, self.answered)

    def shut_down(self, grace_s: float) -> None:
        """Makes the replica finish its calls within `grace_s` seconds, and end."""
        self.is_draining = False
        self.stop_deadline = self.clock() + grace_s
        self._send(Shutdown())

    def shut_down_when_done(self, grace_s: float) -> None:
        """As `shut_down`, after the last pending call. Until then the replica is judged by its
        progress.
        """
        self.is_draining, self._grace_s = True, grace_s
        if not self.pending:
            self.shut_down(grace_s)

    def why_unhealthy(self, heartbeat_timeout_s: float, stall_timeout_s: float) -> str | None:
        """Returns why a ready replica should be replaced: silent, or alive without progress. None
        if it is healthy.
        """
        return self.vitals.why_unhealthy(
            heartbeat_timeout_s, stall_timeout_s, has_work=bool(self.pending)
        )

    def lost(self, how: str, *, out_of_memory: bool = False, has_fallback: bool = False) -> None:
        """Handles the end of the process: fails all calls in flight with `WorkerLostError`.

        `has_fallback` means that the replica's execution was quarantined, and that the next start
        uses another one.
        """
        self._fail_load(
            LoadError(
                f"the process ended while loading ({self.kill_details or how}).",
                out_of_memory=out_of_memory,
                has_fallback=has_fallback,
                reason=self.kill_reason,
            )
        )
        preparing, running = self.flight.read_slots()
        begun = preparing | running
        for identifier, answer in list(self.pending.items()):
            answer.fail(WorkerLostError(begun=identifier in begun, why=self.kill_details))
        self._end_cancelled()

    def close(self) -> None:
        self._end_cancelled()
        self.channel.close()
        self.flight.remove()

    def _receive(self, frames: list[bytes]) -> None:
        message = _head_of(frames)
        self.vitals.message_received()
        match message:
            case Parts():
                self.vitals.progressed()
                self._share_out(message, frames[1])
            case Progress():
                self.vitals.progressed()
                self._report_progress(message)
            case Result():
                self.vitals.progressed()
                self._answer(message, frames[1])
            case Failure():
                self.vitals.progressed()
                if answer := self.pending.get(message.id):
                    answer.fail(error_of(message))
                self._end_cancelled(message.id)
            case Cancelled():
                self._end_cancelled(message.id, message.counts)
            case Heartbeat():
                self.vitals.update(message)
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
            case Adopted():
                self._adopted(message)
            case Calibrated():
                self.on_calibrated(message.engine, message.batch_budget)

    def _load(self, loaded: Loaded) -> None:
        self.progress = 1.0
        self.convertible = loaded.convertible
        self.notices = bounded(loaded.notices)
        self.vitals.progressed()
        # First, because the replica can serve regardless of the measurement.
        if not self.loaded.done():
            self.loaded.set_result(None)
        if loaded.sharing:
            self.on_sharing(loaded.sharing)

    def _adopted(self, adopted: Adopted) -> None:
        if adopted.is_taken and self.execution:
            self.begin_with(self.execution)
        else:
            self.execution, self._is_adopting = None, False

    def _answer(self, result: Result, content: bytes) -> None:
        self.answered += 1
        if answer := self.pending.get(result.id):
            answer.stats.counts.update(result.counts)
            answer.stats.times.update(result.times)
            answer.add(content)
            answer.end()
        self._end_cancelled(result.id, result.counts)

    def _end_cancelled(
        self, identifier: int | None = None, counts: Mapping[str, int] | None = None
    ) -> None:
        """Completes the stats of one cancelled call, or of all."""
        for call_id in [identifier] if identifier is not None else list(self._cancelled):
            if stats := self._cancelled.pop(call_id, None):
                stats.complete(counts or {})

    def _report_progress(self, progress: Progress) -> None:
        if answer := self.pending.get(progress.id):
            answer.last_activity_at = self.vitals.last_message_at
            if answer.on_progress:
                answer.on_progress(progress.fraction)

    def _share_out(self, parts: Parts, content: bytes) -> None:
        start = 0
        for identifier, size in zip(parts.ids, parts.sizes, strict=True):
            if answer := self.pending.get(identifier):
                answer.last_activity_at = self.vitals.last_message_at
                answer.add(content[start : start + size])
            start += size

    def _fail_load(self, problem: LoadError) -> None:
        if not self.loaded.done():
            self.loaded.set_exception(problem)

    def _send(self, message: ToReplica) -> None:
        self.channel.send(pack(message))


def _is_proved(seconds: float, answers: int) -> bool:
    return answers >= PROVED_ANSWERS or (answers > 0 and seconds >= PROVED_S)


def _head_of(frames: list[bytes]) -> FromReplica:
    """Decodes the head of a message. Raises `ValueError` if it is too large."""
    if len(frames[0]) > _MOST_HEAD_BYTES:
        raise ValueError(f"a replica's message has a head of {len(frames[0])} bytes")
    return _decode(frames[0])
