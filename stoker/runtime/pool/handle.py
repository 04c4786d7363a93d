"""Gateway side of one replica: its state, its socket, its calls and vital signs."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from stoker.base.fairness import CURRENT_CALLER
from stoker.runtime.interface import Call, LoadError, OnProgress
from stoker.runtime.observed import Status
from stoker.runtime.packed_calls import PackedCall, frames_of
from stoker.runtime.pool.answers import CallStats, ReplicaAnswer
from stoker.runtime.pool.callbacks import ReplicaCallbacks, bounded_precision
from stoker.runtime.pool.conversion_state import ConversionState, is_proved
from stoker.runtime.pool.lifecycle import Lifecycle
from stoker.runtime.pool.pending_calls import PendingCalls
from stoker.runtime.pool.pending_move import PendingMove
from stoker.runtime.pool.sending import Sending
from stoker.runtime.pool.transport import Channel
from stoker.runtime.pool.vitals import Vitals
from stoker.runtime.pool.work_messages import head_of
from stoker.wire.generation_request import Generation
from stoker.wire.notices import PRECISION, Notice, bounded, cut
from stoker.wire.protocol import (
    Adopt,
    Adopted,
    Calibrated,
    Cancel,
    Cancelled,
    ChosenPrecision,
    Execution,
    Heartbeat,
    Loaded,
    LoadFailed,
    Loading,
    Parts,
    PrecisionChanged,
    Progress,
    RequestFailure,
    RequestResult,
    Shutdown,
    ToReplica,
    pack,
)
from stoker.wire.sleep import Moved, Sleep, Wake

log = logging.getLogger(__name__)

_MOST_DEVICE_CHARS = 32
_ENDED = Moved("its process has ended")
_MOST_RECORDING_CHARS = 256


class FlightReader(Protocol):
    """Flight record of a replica (`stoker.wire.flight`), which outlives its process."""

    def read_slots(self) -> tuple[set[int], set[int]]:
        """Returns the ids of the calls in preparation or finishing, and of those in the engine.

        Both are empty if no record exists.
        """
        ...

    def read_recording(self) -> str:
        """Returns the name of the pass that the replica was recording. Empty if there was none."""
        ...

    def remove(self) -> None:
        """Removes the record if it exists."""
        ...


class ReplicaHandle(Lifecycle):
    """A replica. Only its methods change it."""

    def __init__(
        self,
        *,
        replica_id: str,
        flight: FlightReader,
        generation: int,
        channel: Channel,
        clock: Callable[[], float] = time.monotonic,
        callbacks: ReplicaCallbacks | None = None,
    ) -> None:
        super().__init__(replica_id, clock)
        self.flight: Final = flight
        self.generation: Final = generation
        self.channel: Final = channel
        self.vitals: Final = Vitals(clock)
        self._callbacks = callbacks or ReplicaCallbacks()
        self._calls = PendingCalls(clock)
        self.conversion: Final = ConversionState(clock, lambda: self.answered)
        self._last_used = self._last_live = clock()
        self._stop_deadline = math.inf
        self._grace_s: float | None = None
        """Seconds to stop after the last pending call. None if the replica does not drain."""
        self._progress = 0.0
        self._notices: Sequence[Notice] = ()
        self._device = ""
        self._device_problem = ""
        self._sleep_bytes: int | None = None
        self._pending_move = PendingMove()
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loaded.add_done_callback(self._load_ended)
        self._idle = asyncio.Event()
        """Set while no call is pending."""
        self._idle.set()
        channel.listen(self._receive)

    # --- state ---

    @property
    def last_used(self) -> float:
        return self._last_used

    @property
    def last_live(self) -> float:
        """Time of its last call without background calls."""
        return self._last_live

    @property
    def stop_deadline(self) -> float:
        """Time at which a stopping replica is killed."""
        return self._stop_deadline

    @property
    def progress(self) -> float:
        """Loading progress, 0 to 1."""
        return self._progress

    @property
    def notices(self) -> Sequence[Notice]:
        """Notices about its model, reported after loading."""
        return self._notices

    @property
    def device(self) -> str:
        """Device of the loaded weights, as torch names it in the replica. Empty if unknown."""
        return self._device

    @property
    def is_on_cpu(self) -> bool:
        return self._device == "cpu"

    @property
    def device_problem(self) -> str:
        """Reason that the model runs on the CPU although a GPU was claimed. Empty if none."""
        return self._device_problem

    def explain_device(self, why: str) -> None:
        """Records why the replica is started on the CPU although the machine has a GPU."""
        self._device_problem = why

    @property
    def sleep_bytes(self) -> int | None:
        """Bytes of main memory that the model needs to sleep by itself. None if it cannot."""
        return self._sleep_bytes

    async def wait_loaded(self) -> None:
        """Waits until the model is loaded. Raises `LoadError` if that failed or the replica has
        ended.
        """
        await self._loaded
        if self._end_error:
            raise self._end_error

    def mark_ready(self) -> None:
        super().mark_ready()
        self._last_used = self._last_live = self._ready_at
        # It may have been silent while it was asleep.
        self.vitals.woke_up()

    def fall_asleep(self) -> None:
        """Makes the replica accept no calls until it is ready again."""
        self._advance(Status.ASLEEP)

    async def move(self, message: Sleep | Wake, timeout_s: float) -> Moved:
        """Makes the model move its GPU memory. The outcome has an error if that failed. The replica
        must be ended then.
        """
        if self.has_ended:
            return _ENDED
        self._pending_move.begin()
        self._send(message)
        return await self._pending_move.wait(timeout_s)

    async def wait_idle(self) -> None:
        """Waits until no call is pending."""
        await self._idle.wait()

    def shut_down(self, grace_s: float) -> None:
        """Makes the replica finish its calls within `grace_s` seconds, and end."""
        self._advance(Status.STOPPING)
        self._send_shutdown(grace_s)

    def shut_down_when_done(self, grace_s: float) -> None:
        """As `shut_down`, after the last pending call. Until then the replica is judged by its
        progress.
        """
        self._advance(Status.STOPPING)
        if self._calls:
            self._grace_s = grace_s
        else:
            self._send_shutdown(grace_s)

    def mark_ended(
        self, how: str, *, out_of_memory: bool = False, has_fallback: bool = False
    ) -> None:
        """Handles the end of the process: fails all calls in flight with `WorkerLostError`.

        `has_fallback` means that the replica's execution was quarantined, and that the next start
        uses another one.
        """
        self._fail_load(
            self._record_end(how, out_of_memory=out_of_memory, has_fallback=has_fallback)
        )
        self._pending_move.end(_ENDED)
        preparing, running = self.flight.read_slots()
        # If it was recording a pass, no call in the engine caused its end.
        begun = preparing if self.flight.read_recording() else preparing | running
        self._calls.lose_all(begun, self._kill_cause.details)

    def close(self) -> None:
        self._calls.end_all_cancelled()
        self.channel.close()
        self.flight.remove()

    def _send_shutdown(self, grace_s: float) -> None:
        self._grace_s = None
        self._stop_deadline = self._clock() + grace_s
        self._send(Shutdown())

    # --- calls ---

    @property
    def pending(self) -> Mapping[int, ReplicaAnswer]:
        """Maps the id of each unanswered call to its answer."""
        return self._calls.answers

    @property
    def outstanding(self) -> int:
        return len(self._calls)

    @property
    def live_outstanding(self) -> int:
        """Number of pending calls without background calls."""
        return self._calls.live

    def drop_background(self) -> None:
        """Ends its background calls, so that they use another replica."""
        self._calls.drop_background()

    @property
    def answered(self) -> int:
        return self._calls.answered

    async def call(
        self,
        call: Call | Generation,
        stats: CallStats,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Sends the call and awaits its answer. Cancelling makes the replica drop the work.

        The amounts and durations of the work are added to `stats`.

        Raises `TimeoutError` if the answer takes longer than `timeout_s` seconds.
        """
        with self.sending(call, stats, on_progress) as answer:
            return await answer.whole(timeout_s)

    def sending(
        self, call: Call | Generation, stats: CallStats, on_progress: OnProgress | None = None
    ) -> Sending:
        """Returns a context manager that sends the call and provides its answer.

        The amounts and durations of the work are added to `stats`.
        """
        return Sending(partial(self.begin, call, stats, on_progress), self.finish)

    def begin(
        self, call: Call | Generation, stats: CallStats, on_progress: OnProgress | None
    ) -> tuple[int, ReplicaAnswer]:
        """Sends a call. Returns its id and its answer, which must be passed to `finish`."""
        if not self._calls:
            self.vitals.work_begins()
        packed_id = call.id if isinstance(call, PackedCall) else None
        party = CURRENT_CALLER.get()
        identifier, answer = self._calls.begin(stats, on_progress, packed_id, party.tier)
        self._idle.clear()
        self._last_used = self._clock()
        if not party.tier.is_background:
            self._last_live = self._last_used
        try:
            self.channel.send(frames_of(identifier, call, party))
        except BaseException:
            self.finish(identifier)
            raise
        return identifier, answer

    def finish(self, identifier: int) -> None:
        """Ends a call. If its answer has not ended, the replica drops the work."""
        if not self._calls.finish(identifier):
            self._send(Cancel(identifier))
        self._last_used = self._clock()
        if not self._calls:
            self._idle.set()
            if self._grace_s is not None:
                self._send_shutdown(self._grace_s)

    def adopt(self, execution: Execution) -> None:
        """Makes the replica switch to the converted model. Tried once: if it fails, the replica
        stays as it is.
        """
        self.conversion.offered(execution)
        self._send(Adopt(execution))

    # --- health ---

    @property
    def has_proved_itself(self) -> bool:
        """True if the replica was ready so long that its end is not caused by its start."""
        return is_proved(self._clock() - self._ready_at, self.answered)

    @property
    def was_preparing(self) -> bool:
        """For an ended replica: True if it ended while preparing an input, with no call in the
        engine.
        """
        preparing, running = self.flight.read_slots()
        return bool(preparing) and not running

    def report_lost_recording(self) -> bool:
        """Reports the pass that an ended replica was recording. Returns False if there was none."""
        name = cut(self.flight.read_recording(), _MOST_RECORDING_CHARS)
        if name:
            self._callbacks.on_recording_lost(name)
        return bool(name)

    def why_unhealthy(self, heartbeat_timeout_s: float, stall_timeout_s: float) -> str | None:
        """Returns why a ready replica should be replaced: silent, or alive without progress. None
        if it is healthy.
        """
        return self.vitals.why_unhealthy(
            heartbeat_timeout_s, stall_timeout_s, has_work=bool(self._calls)
        )

    # --- messages ---

    def _receive(self, frames: list[bytes]) -> None:
        message = head_of(frames)
        self.vitals.message_received()
        match message:
            case Parts() | Progress() | RequestResult() | RequestFailure():
                self.vitals.progressed()
                self._calls.receive(message, frames)
            case Cancelled():
                self._calls.end_cancelled(message.id, message.counts)
            case Heartbeat():
                self.vitals.update(message)
            case Loading():
                self._progress = message.progress
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
            case Moved():
                self._pending_move.end(message)
            case Adopted():
                self.conversion.adopted(is_taken=message.is_taken)
            case Calibrated():
                self._callbacks.on_calibrated(message.engine, message.batch_budget)
            case PrecisionChanged():
                self._change_precision(bounded_precision(message.precision))

    def _load(self, loaded: Loaded) -> None:
        self._progress = 1.0
        self.conversion.loaded(is_possible=loaded.convertible)
        self._notices = bounded(loaded.notices)
        if loaded.sleep_bytes is not None:
            self._sleep_bytes = max(0, loaded.sleep_bytes)
        self._device = cut(loaded.device, _MOST_DEVICE_CHARS)
        self._device_problem = cut(loaded.device_problem) or self._device_problem
        self.vitals.progressed()
        # First, because the replica can serve regardless of the measurement.
        if not self._loaded.done():
            self._loaded.set_result(None)
        if loaded.sharing:
            self._callbacks.on_sharing(loaded.sharing)
        if loaded.precision:
            self._callbacks.on_precision(bounded_precision(loaded.precision))

    def _change_precision(self, precision: ChosenPrecision) -> None:
        others = (notice for notice in self._notices if notice.code != PRECISION)
        self._notices = bounded([Notice(PRECISION, precision.message), *others])
        self._callbacks.on_precision_changed(precision, self._notices)

    def _fail_load(self, problem: LoadError) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(problem)

    def _load_ended(self, loaded: "asyncio.Future[None]") -> None:
        # Retrieves the exception. The load may have timed out, and then no task awaits the future.
        problem = None if loaded.cancelled() else loaded.exception()
        if isinstance(problem, LoadError):
            self._callbacks.on_load_failed(problem)

    def _send(self, message: ToReplica) -> None:
        self.channel.send(pack(message))
