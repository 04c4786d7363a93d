"""A replica's work on batches of samples: prepare → batch → forward → finish.

It uses three threads: the caller's (input and output), one that prepares inputs and finishes
outputs, and one that owns the engine. The forward pass releases the GIL, so the others work at the
same time. A thread that has nothing else to do does quick steps itself, because waking another one
takes longer. If preparation is slow, other processes may do it (see `stoker.replica.preparation`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stoker.models.adapters.applying import Adapters
from stoker.models.engines.interface import Engine, overlaps
from stoker.models.engines.invalid_numbers import is_invalid
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages import known_tokens
from stoker.models.stages.base import NoNumbersError, Sample, Stages, StreamWriter
from stoker.replica import failures
from stoker.replica.adapted import adapted
from stoker.replica.batch_choice import DEVICE_STARTS_A_BUDGET, STARTS_A_BUDGET, QueuedSample
from stoker.replica.batching import BatchQueue
from stoker.replica.calibration import Calibration
from stoker.replica.counters import Counters
from stoker.replica.engine_thread import MODEL_FAILED, EngineThread
from stoker.replica.failures import Step
from stoker.replica.mean_time import MeanTime
from stoker.replica.open_requests import OpenRequests
from stoker.replica.passes import Passes
from stoker.replica.precision_fallback import PrecisionFallback
from stoker.replica.preparation.parent import PreparationParent
from stoker.replica.preparation.pool import Prepared
from stoker.replica.preparation.preparer import Preparer
from stoker.replica.queue_thread import QueueThread
from stoker.replica.replies import Replies
from stoker.replica.task_request import RequestState
from stoker.wire.flight import FlightRecord
from stoker.wire.notices import Notice
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import ChosenPrecision, Execution, RequestFailure, Send, Sharing, Work

log = logging.getLogger(__name__)

_FEW_REQUESTS = 4
"""Maximum number of open requests, or samples of a batch, for quick steps on other threads."""


class TaskWorker:
    """`Serving` of a task's model. A request has items, each with samples for the engine."""

    cache_usage: float | None = None
    children: Sequence[int] = ()
    """Excludes preparation processes, whose memory the server measures from outside."""

    def __init__(
        self,
        engine: Engine,
        stages: Stages,
        send: Send,
        flight: FlightRecord,
        calibration: Calibration,
        *,
        passes: Passes | None = None,
        adapters: Adapters | None = None,
        preparation: PreparationParent | None = None,
    ) -> None:
        """
        Args:
            adapters: adapters that requests may name.
            preparation: parent of processes that prepare inputs. None: this process prepares them.
            passes: turns to compute. None: the replica computes without waiting for a turn.
        """
        self._engine = engine
        self._adapters = adapters
        self._stages = stages
        self._replies = Replies(send)
        self._flight = flight
        self._calibration = calibration
        calibration.begin(engine.name)
        self.sharing: Sharing | None = stages.sharing
        self.notices: Sequence[Notice] = stages.notices
        self.device = ""
        self.counters = Counters()
        self._requests: OpenRequests[RequestState] = OpenRequests()
        self._queue = BatchQueue(
            calibration.budget,
            DEVICE_STARTS_A_BUDGET if overlaps(engine) else STARTS_A_BUDGET,
            is_packed=stages.sharing is Sharing.PACKED,
        )
        self._side: QueueThread[Callable[[], None]] = QueueThread(
            "side", lambda task: task(), self.counters, before_waiting=self._queue.announce
        )
        self._finishing = MeanTime()
        self._preparer = Preparer(
            stages,
            preparation,
            self.counters,
            is_hungry=lambda: self._queue.is_short,
            is_behind=lambda: self._side.is_behind,
        )
        self._fallback = (
            PrecisionFallback(engine, self._replies.precision_changed)
            if isinstance(engine, TorchEngine)
            else None
        )
        self._engine_thread = EngineThread(
            engine,
            stages,
            self._queue,
            calibration,
            flight,
            counters=self.counters,
            passes=passes or Passes(),
            replies=self._replies,
            listener=self,
            fallback=self._fallback,
        )

    def start(self) -> None:
        self._side.start()
        self._engine_thread.start()

    def stop(self) -> None:
        # Runs after the preparation of all inputs.
        self._side.put(self._close_queue, is_last=True)
        self._engine_thread.finish()
        self._side.finish()

    def _close_queue(self) -> None:
        """Waits for preparation processes. Their outcomes enter the queue before it closes."""
        self._preparer.finish()
        self._side.put(self._queue.close, is_last=True)

    @property
    def accepted(self) -> int:
        return len(self._requests)

    @property
    def alive(self) -> bool:
        return self._engine_thread.is_usable

    @property
    def is_lost(self) -> bool:
        return self._engine_thread.is_lost

    @property
    def engine(self) -> str:
        return self._engine.name

    @property
    def precision(self) -> ChosenPrecision | None:
        return self._engine.precision if isinstance(self._engine, TorchEngine) else None

    @property
    def convertible(self) -> bool:
        return self._engine.convertible

    @property
    def recorded(self) -> RecordedPasses:
        return self._engine.recorded if overlaps(self._engine) else RecordedPasses()

    @property
    def is_settled(self) -> bool:
        return self._calibration.is_done

    def measured(self) -> tuple[str, int] | None:
        return self._calibration.news()

    def submit(self, message: Work) -> None:
        request = RequestState(message)
        self._requests.open(request)
        self._begin_items(request)

    def _begin_items(self, request: RequestState) -> None:
        if self._is_light(request) and self._side.handle_now(lambda: self._prepare(request, 0)):
            return
        for index in range(len(request.work.items)):
            self._side.put(
                lambda index=index: self._prepare(request, index),
                request.work.key,
                request.work.tier,
            )

    def _is_light(self, request: RequestState) -> bool:
        """True if the calling thread may prepare a request, because that takes less than waking
        another thread. Among many requests, each key gets its turn instead.
        """
        are_few = len(self._requests) <= _FEW_REQUESTS
        return are_few and self._preparer.is_quick and request.is_short_text

    def adopt(self, execution: Execution) -> None:
        self._engine_thread.adopt(execution)

    def cancel(self, request_id: int) -> None:
        """Drops samples that the engine has not begun. Running samples are not answered."""
        if request := self._close(request_id):
            self._replies.cancelled(request_id, dict(request.counts))

    # --- the side thread ---

    def _prepare(self, request: RequestState, index: int) -> None:
        if request.done:
            return
        if request.is_direct:
            with self._flight.preparing.of([request.id]):
                self._finish_item(request, index)
            return

        def deliver(outcome: Prepared) -> None:
            self._side.put(lambda: self._accept(request, index, outcome))

        if not self._preparer.take(request, index, deliver):
            self._accept(request, index, lambda: self._preparer.prepare(request.work, index))

    def _accept(self, request: RequestState, index: int, prepare: Prepared) -> None:
        """Queues the samples of an item, which `prepare` returns."""
        if request.done:
            return
        work = request.work
        with self._flight.preparing.of([request.id]):
            try:
                adapter = adapted(self._adapters, work.adapter)
                samples = prepare()
                known_tokens.refuse_unknown(
                    self._stages, samples, work.items[index], work.parameters
                )
                for sample in samples:
                    sample.adapter = adapter
                if work.stream:
                    self._begin(request, samples)
            except Exception as error:
                self._fail(request, index, failures.PREPARE_INPUT, error)
                return
        request.prepared(index, len(samples))
        entries = [self._entry(request, index, at, sample) for at, sample in enumerate(samples)]
        request.held[index] = [entry for entry in entries if entry.sample.is_held]
        request.phases.enter("queue")
        self._queue.put(
            [free_entry for free_entry in entries if not free_entry.sample.is_held],
            request.work.key,
            request.work.tier,
            more_follow=self._preparer.is_quick and self._side.is_behind_for(request.work.tier),
        )

    def _entry(
        self, request: RequestState, item: int, position: int, sample: Sample
    ) -> QueuedSample:
        return QueuedSample(
            request.id,
            item,
            position,
            sample,
            request,
            length=self._stages.length(sample),
            fixed_cost=self._stages.fixed_cost(sample),
            key=self._stages.batch_key(sample),
        )

    def _begin(self, request: RequestState, samples: Sequence[Sample]) -> None:
        work = request.work
        request.writer = self._stages.writer(work.parameters, work.finishing)
        if request.writer:
            self._send_part(request, request.writer.begin(samples))

    def _send_part(self, request: RequestState, content: bytes) -> None:
        if content and not request.done:
            self._replies.parts([(request.id, content)])

    def _finish(
        self, entries: Sequence[QueuedSample], outputs: Sequence[Mapping[str, Any]]
    ) -> None:
        self._queue.announce()
        with self._flight.preparing.of(entry.request_id for entry in entries):
            for entry, output in zip(entries, outputs, strict=True):
                request: RequestState = entry.owner
                if request.done:
                    continue
                self._check_output(entry, output)
                request.add(entry.item, entry.position, output)
                request.count(self._stages, output)
                if request.writer:
                    self._write(request, request.writer)
                elif request.waiting[entry.item] == 0:
                    self._finish_item(request, entry.item)

    def _check_output(self, entry: QueuedSample, output: Mapping[str, Any]) -> None:
        """Marks an item whose answer would be computed from NaN or infinity."""
        request: RequestState = entry.owner
        if is_invalid(entry.sample, output):
            request.invalid.add(entry.item)

    def _write(self, request: RequestState, writer: StreamWriter) -> None:
        """Sends the outputs that arrived, in the samples' order."""
        if request.invalid:
            # Later answers are computed in float32 if that may help.
            if self._fallback:
                self._fallback.request()
            self._fail(request, 0, failures.NO_NUMBERS, NoNumbersError())
            return
        try:
            while (output := request.next_output()) is not None:
                self._send_part(request, writer.add(output))
            rest = writer.end() if request.is_written else None
        except Exception as error:
            self._fail(request, 0, failures.READ_OUTPUT, error)
            return
        if rest is not None:
            self._answer(request, rest)

    def _write_partial(self, entry: QueuedSample, output: Mapping[str, Any]) -> None:
        self._queue.announce()
        request: RequestState = entry.owner
        if request.writer and not request.done:
            try:
                self._send_part(request, request.writer.partial(entry.position, output))
            except Exception:
                log.exception("partial output could not be sent; continuing without it")

    def _finish_item(self, request: RequestState, index: int) -> None:
        try:
            request.finish(index, self._stages)
        except NoNumbersError:
            request.invalid.add(index)
        except Exception as error:
            self._fail(request, index, failures.READ_OUTPUT, error)
            return
        request.missing -= 1
        if request.missing:
            return
        try:
            content = request.encoded()
        except NoNumbersError as error:
            if not self._repeat(request):
                self._fail(request, min(request.invalid, default=0), failures.NO_NUMBERS, error)
            return
        except Exception as error:
            self._fail(request, 0, failures.ENCODE_RESULT, error)
            return
        self._answer(request, content)

    def _repeat(self, request: RequestState) -> bool:
        """Computes a request again in float32. Returns False if that was done, or cannot help."""
        if request.is_repeated or not (self._fallback and self._fallback.request()):
            return False
        request.repeat()
        self._begin_items(request)
        return True

    # --- the ends of a request ---

    def _answer(self, request: RequestState, content: bytes) -> None:
        # No sample of it is in the queue any more.
        if self._requests.close(request.id):
            self._replies.result(request.id, content, request.counts, request.phases.end())

    def _fail(self, request: RequestState, index: int, step: Step, error: Exception) -> None:
        self._end(failures.failure(request.id, step, error, partial(request.place, index)))

    def _end(self, failure: RequestFailure) -> None:
        if self._close(failure.id):
            self._replies.failure(failure)

    def _close(self, request_id: int) -> RequestState | None:
        """Removes and returns a request to answer it. None if it was answered or cancelled
        before.
        """
        if request := self._requests.close(request_id):
            self._queue.drop(request_id)
        return request

    # --- on the engine's thread (see `SampleListener`) ---

    def following(self, entry: QueuedSample, output: Mapping[str, Any]) -> list[QueuedSample]:
        request: RequestState = entry.owner
        if request.done:
            return []
        next_sample = self._stages.following(output)
        samples = [] if next_sample is None else [(entry.position, next_sample)]
        held_entries = request.held.pop(entry.item, []) if entry.position == 0 else []
        if samples or held_entries:
            # The last output need not show that this one is invalid.
            self._check_output(entry, output)
        samples += [
            (held_entry.position, self._stages.released(held_entry.sample, output))
            for held_entry in held_entries
        ]
        for _, sample in samples:
            sample.adapter = entry.sample.adapter
        return [self._entry(request, entry.item, at, sample) for at, sample in samples]

    def finished(self, batch: Sequence[QueuedSample], outputs: Sequence[Mapping[str, Any]]) -> None:
        if not batch:
            return
        # Most samples of a longer request only wait for its last one.
        is_single = all(len(entry.owner.work.items) == entry.owner.samples == 1 for entry in batch)

        def finish() -> None:
            if not is_single:
                self._finish(batch, outputs)
                return
            with self._finishing.measured(len(batch)):
                self._finish(batch, outputs)

        # The engine is idle, and the step takes less time than waking a thread.
        is_idle = not (len(self._queue) or overlaps(self._engine))
        is_short = is_single and len(batch) <= _FEW_REQUESTS and self._finishing.is_quick
        if not (is_idle and is_short and self._side.handle_now(finish)):
            self._side.put(finish)

    def partial(self, entry: QueuedSample, output: Mapping[str, Any]) -> None:
        self._side.put(lambda: self._write_partial(entry, output))

    def failed(self, entry: QueuedSample, message: str = MODEL_FAILED) -> None:
        place = entry.owner.place(entry.item, None)
        failure = failures.model_failure(entry.request_id, message, place)
        self._side.put(lambda: self._end(failure))
