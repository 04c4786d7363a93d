"""The thread that owns an engine: takes batches, runs them, and calibrates and adopts between
them.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stoker.models.engines.interface import Engine, overlaps
from stoker.models.engines.recording_guard import DeviceLostError
from stoker.models.engines.shortage import free_unused, is_out_of_memory
from stoker.models.stages.base import Stages
from stoker.models.stages.watch import AbandonedError, Watch
from stoker.replica.adoption import Adoption
from stoker.replica.batch_choice import QueuedSample, cost
from stoker.replica.batching import BatchQueue
from stoker.replica.calibration import Calibration
from stoker.replica.counters import Counters, Pulse
from stoker.replica.idle_work import QUIET_S, IdleWork
from stoker.replica.named_thread import NamedThread
from stoker.replica.overlap import Overlap
from stoker.replica.passes import Passes
from stoker.replica.precision_fallback import PrecisionFallback
from stoker.replica.replies import Replies
from stoker.replica.task_request import RequestState
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import Execution, Sharing

log = logging.getLogger(__name__)

_IDLE_S = 0.25

MODEL_FAILED = "The model failed on this input."
TOO_LARGE = (
    "This input needs more memory than is free on the model's device. Send a smaller input, or "
    "try again later."
)


class SampleListener(Protocol):
    """Receives the results of samples on the engine's thread. It must not delay that thread."""

    def following(self, entry: QueuedSample, output: Mapping[str, Any]) -> list[QueuedSample]:
        """Returns the entries that can be queued now that an entry has an output.

        The entry with the same position continues the passed entry. Runs entirely on the engine's
        thread.
        """
        ...

    def finished(self, batch: Sequence[QueuedSample], outputs: Sequence[Mapping[str, Any]]) -> None:
        """Receives entries that have their outputs, one output each."""
        ...

    def partial(self, entry: QueuedSample, output: Mapping[str, Any]) -> None:
        """Receives part of a sample's output to send on. More follows."""
        ...

    def failed(self, entry: QueuedSample, message: str = MODEL_FAILED) -> None:
        """Receives an entry with a sample that failed even when it ran alone. The error is logged.

        Args:
            message: message for the client.
        """
        ...


class EngineThread:
    """Runs the batches of a queue until the queue is closed and empty."""

    def __init__(
        self,
        engine: Engine,
        stages: Stages,
        queue: BatchQueue,
        calibration: Calibration,
        flight: FlightRecord,
        *,
        counters: Counters,
        passes: Passes,
        replies: Replies,
        listener: SampleListener,
        fallback: PrecisionFallback | None = None,
    ) -> None:
        self._engine = engine
        self._stages = stages
        self._queue = queue
        self._calibration = calibration
        self._flight = flight
        self._counters = counters
        self._passes = passes
        self._replies = replies
        self._listener = listener
        self._fallback = fallback
        self._adoption = Adoption(engine.prepare, queue.wake, replies.adopted)
        self._pulse = counters.pulse(lambda: len(queue) > 0)
        self._overlap: Overlap | None = None
        self._idle_work: IdleWork | None = None
        self.is_lost = False
        """True once the thread has ended because of its device, with requests in the queue."""
        if overlaps(engine):
            self._idle_work = IdleWork(engine)
            self._overlap = Overlap(
                engine,
                queue,
                self,
                flight,
                passes=passes,
                pulse=self._pulse,
                taken=self._switch_precision,
                pauses=lambda: self._adoption.pending or self._is_idle_work_due(),
            )
        self._thread = NamedThread("engine", self._run)

    @property
    def is_usable(self) -> bool:
        """False once the device can no longer compute."""
        return not self.is_lost and (self._overlap is None or self._overlap.is_usable)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Runs queued entries, then ends the thread. Waits for the queue to be closed."""
        self._thread.join()

    def adopt(self, execution: Execution) -> None:
        """Continues with the converted model once it is ready, after the batch that runs then."""
        self._adoption.offer(execution)

    def _run(self) -> None:
        self._engine.enter_thread()
        while not self.is_lost and self._queue.wait(self._patience_s):
            is_idle = not len(self._queue)
            if not is_idle:
                self._work()
            if self._adoption.pending:
                with self._pulse:
                    self._take_over()
            elif is_idle and not (self._calibration.is_done or self._adoption.is_preparing):
                with self._passes:
                    self._calibrate()
            elif self._idle_work and self._is_idle_work_due():
                with self._pulse:
                    self._improve(self._idle_work)

    def _improve(self, idle_work: IdleWork) -> None:
        try:
            idle_work.step(is_idle=not len(self._queue))
        except DeviceLostError:
            log.exception("the device is lost; the replica ends")
            self.is_lost = True

    def _is_idle_work_due(self) -> bool:
        return self._idle_work is not None and self._idle_work.is_due(is_idle=not len(self._queue))

    def _work(self) -> None:
        if self._overlap and self._idle_work:
            self._overlap.run()
            self._idle_work.worked()
            return
        # Entries that arrive while this replica waits for its turn still join the batch.
        with self._passes:
            if batch := self._queue.take():
                with self._pulse:
                    self._switch_precision()
                    self._run_batch(batch)

    def _switch_precision(self) -> None:
        """Switches the precision if that was requested. Called after `BatchQueue.take`, so that a
        repeated request is computed in the new precision.
        """
        if self._fallback:
            self._fallback.run()

    @property
    def _patience_s(self) -> float | None:
        """Timeout in seconds for work. None if nothing is left to measure, so that idling costs
        nothing.
        """
        if self._idle_work and self._idle_work.is_wanted:
            return QUIET_S
        return None if self._calibration.is_done else _IDLE_S

    def _calibrate(self) -> None:
        self._pulse.is_working = True
        if self._calibration.step(self._engine, self._stages):
            self._queue.budget = self._calibration.budget
        self._pulse.is_working = False

    def _take_over(self) -> None:
        self._adoption.adopt()
        self._calibration.begin(self._engine.name)
        self._queue.budget = self._calibration.budget
        self._queue.is_packed = self._stages.sharing is Sharing.PACKED

    def _run_batch(self, batch: Sequence[QueuedSample]) -> None:
        with self._flight.running.of(entry.request_id for entry in batch):
            self.launched(batch)
            started = time.perf_counter()
            outputs = self._forward(batch)
        if isinstance(outputs, Exception):
            self.fail(batch, outputs)
        else:
            self.answer(batch, outputs, time.perf_counter() - started)

    def _forward(self, batch: Sequence[QueuedSample]) -> list[Mapping[str, Any]] | Exception:
        watch = _BatchWatch(batch, self._pulse, self._replies, self._listener)
        try:
            return self._engine.forward([entry.sample for entry in batch], watch)
        except Exception as error:
            return error

    def launched(self, batch: Sequence[QueuedSample]) -> None:
        _enter(batch, "forward")

    def answer(
        self,
        batch: Sequence[QueuedSample],
        outputs: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> None:
        self._counters.passed(len(batch), seconds)
        _enter(batch, "finish")
        log.debug("batch of %d in %.1f ms", len(batch), seconds * 1e3)
        ended: list[QueuedSample] = []
        last: list[Mapping[str, Any]] = []
        for entry, output in zip(batch, outputs, strict=True):
            if not self._continue(entry, output):
                ended.append(entry)
                last.append(output)
        self._listener.finished(ended, last)

    def fail(self, batch: Sequence[QueuedSample], error: Exception) -> None:
        size = {"size": len(batch)}
        if isinstance(error, AbandonedError):
            log.info("batch skipped: all its calls were cancelled", extra=size)
            return
        log.error("batch failed", exc_info=error, extra=size)
        # Its frames hold the tensors of the pass.
        error.__traceback__ = None
        if is_out_of_memory(error):
            self._halve(batch)
        else:
            self._isolate(batch)

    def _continue(self, entry: QueuedSample, output: Mapping[str, Any]) -> bool:
        """Queues the entries that follow an output. Returns True if they continue the entry."""
        try:
            following = self._listener.following(entry, output)
        except Exception:
            log.exception("output could not be continued")
            self._listener.failed(entry)
            return True
        if not following:
            return False
        self._queue.put(following, entry.party, entry.tier)
        if not any(successor.position == entry.position for successor in following):
            return False
        self._listener.partial(entry, output)
        return True

    def _isolate(self, batch: Sequence[QueuedSample]) -> None:
        """Runs a failed batch's entries one by one, so that only the bad one fails."""
        if len(batch) == 1:
            self._listener.failed(batch[0])
            return
        for entry in batch:
            if not entry.owner.done:
                self._run_batch([entry])

    def _halve(self, batch: Sequence[QueuedSample]) -> None:
        """Runs both halves of a batch that needs more memory than is free. Fails a single entry."""
        if overlaps(self._engine):
            self._engine.drop_recorded()
        free_unused()
        if len(batch) == 1:
            self._listener.failed(batch[0], TOO_LARGE)
            return
        half = len(batch) // 2
        longest = max(entry.length for entry in batch)
        self._calibration.limit(half * cost(longest, batch[0].fixed_cost))
        self._queue.budget = self._calibration.budget
        for part in (batch[:half], batch[half:]):
            if waiting := [entry for entry in part if not entry.owner.done]:
                self._run_batch(waiting)


def _enter(batch: Sequence[QueuedSample], phase: str) -> None:
    for request in dict.fromkeys(entry.owner for entry in batch):
        request.phases.enter(phase)


class _BatchWatch(Watch):
    """Listens to the engine while it computes one batch."""

    def __init__(
        self,
        batch: Sequence[QueuedSample],
        pulse: Pulse,
        replies: Replies,
        listener: SampleListener,
    ) -> None:
        self._batch = batch
        self._pulse = pulse
        self._replies = replies
        self._listener = listener

    def step(self, fraction: float) -> None:
        self._pulse.stepped()
        waiting = [entry for entry in self._batch if not entry.owner.done]
        if not waiting:
            raise AbandonedError
        for entry in waiting:
            request: RequestState = entry.owner
            request.fractions[entry.item, entry.position] = fraction
        for request in dict.fromkeys(entry.owner for entry in waiting):
            if (share := request.progress()) is not None:
                self._replies.progress(request.id, share)

    def part(self, row: int, output: Mapping[str, Any]) -> None:
        self._listener.partial(self._batch[row], output)
