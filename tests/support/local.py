"""The replica side of a task in the test process: real stages, engine, worker threads and
batching.
"""

import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stoker.models.adapters.applying import Adapters
from stoker.models.diffusion.base import DiffusionStages
from stoker.models.engines.diffusers import DiffusersEngine
from stoker.models.engines.openvino import OpenVinoEngine
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages import known_tokens
from stoker.models.stages.base import Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.models.tasks.base import Task
from stoker.models.tasks.registry import STAGES, WORKS
from stoker.replica.calibration import Calibration
from stoker.replica.passes import Passes
from stoker.replica.worker import TaskWorker
from stoker.runtime.interface import Call
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import (
    Execution,
    FromReplica,
    Parts,
    RequestFailure,
    RequestResult,
    Work,
    pack,
    unpack,
)

MODEL = "local"
"""Model id in the answers."""
BIG = 1 << 30
"""Batch budget that never limits a batch."""


class RefusedError(Exception):
    """Failure that a client would receive as an error."""

    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Local:
    """A loaded model of one pipeline. Its bodies are those of the HTTP endpoint, with media as
    bytes.
    """

    def __init__(
        self,
        pipeline: str,
        folder: Path,
        *,
        in_openvino: bool = False,
        adapters: Path | None = None,
        adapter_bytes: int = 1 << 20,
    ) -> None:
        """
        Args:
            in_openvino: use the engine that may adopt a converted model.
            adapters: folder of the adapters that calls may name.
        """
        self.stages = STAGES[pipeline](folder)
        self.pipeline = pipeline
        self.batches: list[int] = []
        self._engine = _counting(self.stages, in_openvino=in_openvino)(self.batches)
        self.model = self._engine.load(folder, self.stages, lambda *_: None)
        self.stages.attach(self.model)
        known_tokens.learn(self.stages, self.model)
        self._gate = _Gate()
        self._sent: queue.Queue[tuple[FromReplica, bytes | None]] = queue.Queue()
        self._flight = TemporaryDirectory()
        if adapters:
            self._engine.adapters = Adapters(self.model, adapters, adapter_bytes)
        self._worker = TaskWorker(
            self._engine,
            self.stages,
            lambda message, content: self._sent.put((message, content)),
            FlightRecord(Path(self._flight.name) / "flight"),
            Calibration({"torch": BIG, "openvino": BIG, "diffusers": BIG}),
            passes=self._gate,
            adapters=getattr(self._engine, "adapters", None),
        )
        self._worker.start()
        self._number = 0

    def ask(self, body: Mapping[str, Any], task: str | None = None) -> Any:
        """Returns the answer to one request. Raises `RefusedError`."""
        return self.ask_together([body], task)[0]

    def ask_together(self, bodies: Sequence[Mapping[str, Any]], task: str | None = None) -> Any:
        """Returns the answers to requests that are in the queue at the same time."""
        name = task or self.pipeline
        calls: list[Call] = []
        for body in bodies:
            record = WORKS[name]
            assert isinstance(record, Task)
            request = record.request.model_validate(body)
            items, single = request.items()
            finishing = request.finishing() | {"model": MODEL}
            options = {"parameters": request.parameters(), "finishing": finishing}
            calls.append(Call(task=name, items=items, single=single, **options))
        return [json.loads(content) for content in self.answers(calls)]

    def answers(self, calls: Sequence[Call]) -> list[bytes]:
        """Returns the answers, as bytes, to calls that are in the queue at the same time.

        Raises `RefusedError`.
        """
        works = [self._received(call) for call in calls]
        numbers = [work.id for work in works]
        self._gate.is_open.clear()
        for work in works:
            self._worker.submit(work)
        # Opens the gate once all calls are prepared. A tiny model would otherwise finish one before
        # the next is ready.
        self._worker._side.put(self._gate.is_open.set, is_last=True)
        failed: RequestFailure | None = None
        streamed: dict[int, bytes] = {}
        results: dict[int, bytes] = {}
        while len(results) < len(numbers):
            message, content = self._sent.get(timeout=60)
            if isinstance(message, RequestFailure):
                results[message.id] = b""
                failed = message
            elif isinstance(message, Parts):
                (number,) = message.ids
                streamed[number] = streamed.get(number, b"") + (content or b"")
            elif isinstance(message, RequestResult):
                results[message.id] = streamed.get(message.id, b"") + (content or b"")
        if failed:
            raise RefusedError(failed)
        return [results[number] for number in numbers]

    def _received(self, call: Call) -> Work:
        """Returns the call as the replica decodes it from the socket."""
        self._number += 1
        work = Work(
            self._number,
            call.task,
            list(call.items),
            dict(call.parameters),
            call.single,
            dict(call.finishing),
            call.stream,
            adapter=call.adapter.folder if call.adapter else "",
        )
        received = unpack(pack(work))
        assert isinstance(received, Work)
        return received

    @property
    def engine(self) -> str:
        """Name of the engine that runs the model."""
        return self._engine.name

    def adopt(self, execution: Execution) -> None:
        """Switches to a converted model after the next batch. Returns once the model is
        prepared.
        """
        adoption = self._worker._engine_thread._adoption
        self._worker.adopt(execution)
        while adoption.is_preparing:
            time.sleep(0.01)

    def forward(self, samples: Sequence[Any]) -> Any:
        """Returns the outputs of samples without the queue."""
        return self._engine.forward(samples)

    def close(self) -> None:
        self._worker.stop()
        self._flight.cleanup()


class _Gate(Passes):
    """Gate that keeps the engine's thread from reading the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = threading.Event()
        self.is_open.set()

    def __enter__(self) -> None:
        self.is_open.wait()


def _counting(stages: Stages, *, in_openvino: bool) -> Any:
    """Returns a class of the engine for these stages that records its batch sizes."""
    engine: Any = DiffusersEngine if isinstance(stages, DiffusionStages) else TorchEngine
    engine = OpenVinoEngine if in_openvino else engine

    class Counting(engine):
        def __init__(self, batches: list[int]) -> None:
            super().__init__("cpu", "float32", 1)
            self._batches = batches

        def forward(self, samples: Any, watch: Watch = UNWATCHED) -> Any:
            self._batches.append(len(samples))
            return super().forward(samples, watch)

    return Counting
