"""The replica's work: prepare → batch → forward → finish.

Three threads: the caller's (input and output), one that prepares inputs and finishes outputs, and
one that owns the engine. The forward pass releases the GIL, so the others work beside it.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stoker.engines.interface import Engine
from stoker.replica.batching import BatchQueue, Entry
from stoker.replica.calibration import Calibration
from stoker.stages.base import InputError, Sample, Stages, StreamWriter
from stoker.stages.watch import AbandonedError, Watch
from stoker.tasks.registry import WORKS
from stoker.wire.flight import FlightRecord
from stoker.wire.phases import Phases
from stoker.wire.protocol import (
    Batches,
    Cancelled,
    Execution,
    Failure,
    Parts,
    Progress,
    Result,
    Send,
    Sharing,
    Work,
)

log = logging.getLogger(__name__)


_PREPARING, _RUNNING = 0, 1
_IDLE_S = 0.25
_TOLD_EVERY = 0.005
"""Progress is sent in steps of at least this share of the work."""
_WRITTEN: Mapping[str, Any] = {}
"""Takes the place of an output that is not needed any more."""


@dataclass(eq=False)
class Request:
    work: Work
    missing: int
    """Items without a result yet."""
    results: list[Any]
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    """Item → samples without an output yet."""
    outputs: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """What was worked on so far, as `Result.counts`."""
    samples: int = 0
    """Of its items that were prepared."""
    fractions: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Item and position of a sample → how much of it is computed."""
    told: float = 0.0
    """The progress that was sent last."""
    writer: StreamWriter | None = None
    written: int = 0
    """Samples whose outputs the writer has had."""
    done: bool = False
    phases: Phases = field(default_factory=lambda: Phases("prepare"))


class Worker:
    def __init__(
        self,
        engine: Engine,
        stages: Stages,
        send: Send,
        flight: FlightRecord,
        calibration: Calibration,
    ) -> None:
        self._engine = engine
        self._stages = stages
        self._send = send
        self._flight = flight
        self._calibration = calibration
        calibration.begin(engine.name)
        self._adopting: Execution | None = None
        self.sharing: Sharing | None = stages.sharing
        self.busy_s = 0.0
        self.batches = Batches()
        self._queue = BatchQueue(calibration.budget)
        self._side: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._requests: dict[int, Request] = {}
        self.progress = 0
        self._threads = [
            threading.Thread(target=self._run_side, name="side", daemon=True),
            threading.Thread(target=self._run_engine, name="engine", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what was accepted, then end the threads."""
        self._side.put(self._queue.close)
        self._threads[1].join()
        self._side.put(None)
        self._threads[0].join()

    @property
    def accepted(self) -> int:
        return len(self._requests)

    @property
    def engine(self) -> str:
        return self._engine.name

    @property
    def convertible(self) -> bool:
        return self._engine.convertible

    @property
    def cache_usage(self) -> float | None:
        return None

    @property
    def alive(self) -> bool:
        return True

    @property
    def children(self) -> Sequence[int]:
        return ()

    def measured(self) -> tuple[str, int] | None:
        return self._calibration.news()

    def submit(self, message: Work) -> None:
        work = message
        request = Request(work, missing=len(work.items), results=[None] * len(work.items))
        self._requests[work.id] = request
        for index in range(len(work.items)):
            self._side.put(lambda index=index: self._prepare(request, index))

    def adopt(self, execution: Execution) -> None:
        """Have the engine go on with the converted model, after the batch that it is at."""
        self._adopting = execution

    def cancel(self, request_id: int) -> None:
        """Drop what the engine has not begun; what it has begun is not answered."""
        if request := self._requests.pop(request_id, None):
            request.done = True
            self._queue.drop(request_id)
            self._send(Cancelled(request_id, dict(request.counts)), None)

    # --- the side thread ---

    def _run_side(self) -> None:
        while (task := self._side.get()) is not None:
            task()
            self.progress += 1

    def _prepare(self, request: Request, index: int) -> None:
        if request.done:
            return
        self._flight.set(_PREPARING, [request.work.id])
        try:
            samples = self._stages.preprocess(request.work.items[index], request.work.parameters)
            if request.work.stream:
                self._begin(request, samples)
        except InputError as error:
            self._refuse(request, index, error)
            return
        except Exception:
            log.exception("an input could not be prepared")
            self._fail(request, index, "The input could not be prepared for the model.")
            return
        finally:
            self._flight.set(_PREPARING, [])
        request.samples += len(samples)
        request.waiting[index] = len(samples)
        request.outputs[index] = [None] * len(samples)
        request.phases.enter("queue")
        self._queue.put(
            [
                Entry(
                    request.work.id,
                    index,
                    position,
                    sample,
                    request,
                    length=self._stages.length(sample),
                    fixed_cost=self._stages.fixed_cost(sample),
                    key=self._stages.batch_key(sample),
                )
                for position, sample in enumerate(samples)
            ]
        )

    def _begin(self, request: Request, samples: Sequence[Sample]) -> None:
        work = request.work
        request.writer = self._stages.writer(work.parameters, work.finishing)
        if request.writer:
            self._send_part(request, request.writer.begin(samples))

    def _send_part(self, request: Request, content: bytes) -> None:
        if content and not request.done:
            self._send(Parts([request.work.id], [len(content)]), content)

    def _finish(self, entries: Sequence[Entry], outputs: Sequence[Mapping[str, Any]]) -> None:
        self._flight.set(_PREPARING, [entry.request_id for entry in entries])
        for entry, output in zip(entries, outputs, strict=True):
            request: Request = entry.owner
            if request.done:
                continue
            request.outputs[entry.item][entry.position] = output
            request.waiting[entry.item] -= 1
            self._count(request, output)
            if request.writer:
                self._write(request, request.writer)
            elif request.waiting[entry.item] == 0:
                self._finish_item(request, entry.item)
        self._flight.set(_PREPARING, [])

    def _count(self, request: Request, output: Mapping[str, Any]) -> None:
        try:
            for name, value in self._stages.counts(output).items():
                request.counts[name] = request.counts.get(name, 0) + value
        except Exception:
            # The answer is worth more than its statistics.
            log.exception("an output could not be counted")

    def _write(self, request: Request, writer: StreamWriter) -> None:
        """Send on what has come in the samples' order."""
        outputs = request.outputs[0]
        try:
            while request.written < len(outputs) and outputs[request.written] is not None:
                self._send_part(request, writer.add(outputs[request.written]))
                outputs[request.written] = _WRITTEN
                request.written += 1
            rest = writer.end() if request.written == len(outputs) else None
        except InputError as error:
            self._refuse(request, 0, error)
            return
        except Exception:
            log.exception("an output could not be read")
            self._fail(request, 0, "The model's output could not be read.")
            return
        if rest is not None and self._close(request):
            self._send(self._result(request), rest)

    def _write_partial(self, entry: Entry, output: Mapping[str, Any]) -> None:
        request: Request = entry.owner
        if request.writer and not request.done:
            try:
                self._send_part(request, request.writer.partial(entry.position, output))
            except Exception:
                log.exception("a partial output could not be written; going on without it")

    def _finish_item(self, request: Request, index: int) -> None:
        outputs = request.outputs.pop(index)
        try:
            request.results[index] = self._stages.postprocess(outputs, request.work.parameters)
        except InputError as error:
            self._refuse(request, index, error)
            return
        except Exception:
            log.exception("an output could not be read")
            self._fail(request, index, "The model's output could not be read.")
            return
        request.missing -= 1
        if request.missing == 0:
            self._answer(request)

    def _answer(self, request: Request) -> None:
        work = request.work
        try:
            result = WORKS[work.task].finish(work, request.results)
            is_encoded = isinstance(result, bytes)
            content = result if is_encoded else msgspec.json.encode(result, enc_hook=_plain)
        except Exception:
            log.exception("a result could not be encoded")
            self._fail(request, 0, "The result could not be encoded.")
            return
        if self._close(request):
            self._send(self._result(request), content)

    def _result(self, request: Request) -> Result:
        return Result(request.work.id, request.counts, request.phases.end())

    def _refuse(self, request: Request, index: int, error: InputError) -> None:
        indexed = error.of_item and not request.work.single
        place = WORKS[request.work.task].place
        param = place(error.field, index) if indexed else error.field
        if self._close(request):
            self._send(Failure(request.work.id, error.code, error.message, param), None)

    def _fail(self, request: Request, index: int, message: str) -> None:
        task = WORKS[request.work.task]
        single = request.work.single
        param = task.input_field if single else task.place(task.input_field, index)
        if self._close(request):
            self._send(Failure(request.work.id, "inference_failed", message, param), None)

    def _close(self, request: Request) -> bool:
        """End a request; False where it was answered or cancelled before."""
        if request.done:
            return False
        request.done = True
        self._requests.pop(request.work.id, None)
        self._queue.drop(request.work.id)
        return True

    # --- the engine thread ---

    def _run_engine(self) -> None:
        self._engine.enter_thread()
        while (batch := self._queue.take(_IDLE_S)) is not None:
            if batch:
                self._run_batch(batch)
                self.progress += 1
            if self._adopting:
                self._adopt()
            elif not batch and self._calibration.step(self._engine, self._stages):
                self._queue.budget = self._calibration.budget

    def _adopt(self) -> None:
        execution, self._adopting = self._adopting, None
        if execution is None:
            return
        try:
            self._engine.adopt(execution)
        except Exception:
            log.exception("the converted model could not be taken; going on without it")
            return
        self._calibration.begin(self._engine.name)
        self._queue.budget = self._calibration.budget
        self.progress += 1

    def _run_batch(self, batch: Sequence[Entry]) -> None:
        self._flight.set(_RUNNING, [entry.request_id for entry in batch])
        _enter(batch, "forward")
        started = time.perf_counter()
        try:
            outputs = self._engine.forward([entry.sample for entry in batch], _Looking(self, batch))
        except AbandonedError:
            log.info("nobody waits for a batch any more", extra={"size": len(batch)})
            return
        except Exception:
            log.exception("a batch failed", extra={"size": len(batch)})
            self._isolate(batch)
            return
        finally:
            self._flight.set(_RUNNING, [])
        self.busy_s += (seconds := time.perf_counter() - started)
        self.batches.count(len(batch))
        _enter(batch, "finish")
        log.debug("batch of %d in %.1f ms", len(batch), seconds * 1e3)
        self._side.put(lambda: self._finish(batch, outputs))

    def _isolate(self, batch: Sequence[Entry]) -> None:
        """Run a failed batch's entries one by one, so that only the bad one fails."""
        if len(batch) > 1:
            for entry in batch:
                if not entry.owner.done:
                    self._run_batch([entry])
            return
        entry = batch[0]
        self._side.put(
            lambda: self._fail(entry.owner, entry.item, "The model failed on this input.")
        )

    def stepped(self, batch: Sequence[Entry], fraction: float) -> None:
        """So much of the batch is computed. Raises `AbandonedError` where nobody waits for it."""
        self.progress += 1
        waiting = [entry for entry in batch if not entry.owner.done]
        if not waiting:
            raise AbandonedError
        for entry in waiting:
            request: Request = entry.owner
            request.fractions[entry.item, entry.position] = fraction
        for request in dict.fromkeys(entry.owner for entry in waiting):
            share = sum(request.fractions.values()) / max(1, request.samples)
            if share >= request.told + _TOLD_EVERY:
                request.told = share
                self._send(Progress(request.work.id, share), None)

    def part(self, entry: Entry, output: Mapping[str, Any]) -> None:
        """There is something of a sample to be sent on, of which more is to come."""
        self._side.put(lambda: self._write_partial(entry, output))


def _enter(batch: Sequence[Entry], phase: str) -> None:
    for request in dict.fromkeys(entry.owner for entry in batch):
        request.phases.enter(phase)


class _Looking(Watch):
    """What an engine tells of a batch of the worker's."""

    def __init__(self, worker: Worker, batch: Sequence[Entry]) -> None:
        self._worker = worker
        self._batch = batch

    def step(self, fraction: float) -> None:
        self._worker.stepped(self._batch, fraction)

    def part(self, row: int, output: Mapping[str, Any]) -> None:
        self._worker.part(self._batch[row], output)


def _plain(value: Any) -> Any:
    """numpy and torch scalars and arrays as JSON numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result holds a {type(value).__name__}")
