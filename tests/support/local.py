"""A task's replica side in this process: real stages, engine, worker threads and batching."""

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stoker.replica.calibration import Calibration
from stoker.replica.engines.torch import TorchEngine
from stoker.replica.flight import FlightRecord
from stoker.replica.protocol import Failure, FromReplica, Result, Work, pack, unpack
from stoker.replica.worker import Worker
from stoker.tasks.registry import STAGES, TASKS

BIG = 1 << 30
"""A batch budget that lets everything share a batch that may."""


class RefusedError(Exception):
    """What a client would get as an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Local:
    """One model of a pipeline. Bodies are those of the HTTP endpoint, media already in bytes."""

    def __init__(self, pipeline: str, folder: Path) -> None:
        self.stages = STAGES[pipeline](folder)
        self.pipeline = pipeline
        self.batches: list[int] = []
        self._engine = _Counting(self.batches)
        self.model = self._engine.load(folder, self.stages, lambda *_: None)
        self.stages.attach(self.model)
        self._sent: queue.Queue[tuple[FromReplica, bytes | None]] = queue.Queue()
        self._flight = TemporaryDirectory()
        self._worker = Worker(
            self._engine,
            self.stages,
            lambda message, content: self._sent.put((message, content)),
            FlightRecord(Path(self._flight.name) / "flight"),
            Calibration({"torch": BIG}),
        )
        self._worker.start()
        self._number = 0

    def ask(self, body: Mapping[str, Any], task: str | None = None) -> Any:
        """The answer to one request. Raises `RefusedError`."""
        return self.ask_together([body], task)[0]

    def ask_together(self, bodies: Sequence[Mapping[str, Any]], task: str | None = None) -> Any:
        """The answers to requests that are in the queue at the same time."""
        numbers: list[int] = []
        works: list[Work] = []
        for body in bodies:
            request = TASKS[task or self.pipeline].request.model_validate(body)
            items, single = request.items()
            self._number += 1
            numbers.append(self._number)
            work = Work(
                self._number,
                task or self.pipeline,
                items,
                request.parameters(),
                single,
                request.finishing(),
            )
            # As it comes out of the socket.
            received = unpack(pack(work))
            assert isinstance(received, Work)
            works.append(received)
        self._engine.may_run.clear()
        for work in works:
            self._worker.submit(work)
        # Once all are prepared: tiny models would be through with one before the next is.
        self._worker._side.put(self._engine.may_run.set)
        found: dict[int, Any] = {}
        while len(found) < len(numbers):
            message, content = self._sent.get(timeout=60)
            assert isinstance(message, Result | Failure)
            found[message.id] = message if content is None else json.loads(content)
        for number in numbers:
            if isinstance(found[number], Failure):
                raise RefusedError(found[number])
        return [found[number] for number in numbers]

    def forward(self, samples: Sequence[Any]) -> Any:
        """Their outputs, past the queue."""
        self._engine.may_run.set()
        return self._engine.forward(samples)

    def close(self) -> None:
        self._worker.stop()
        self._flight.cleanup()


class _Counting(TorchEngine):
    def __init__(self, batches: list[int]) -> None:
        super().__init__("cpu", "float32", 1)
        self._batches = batches
        self.may_run = threading.Event()

    def forward(self, samples: Any) -> Any:
        self.may_run.wait()
        self._batches.append(len(samples))
        return super().forward(samples)
