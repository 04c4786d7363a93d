"""A worker with real stages, a real tiny model and real preparation processes."""

import itertools
import json
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import InputError, Sample, Stages
from stoker.models.tasks.registry import STAGES
from stoker.replica.calibration import Calibration
from stoker.replica.preparation.parent import PreparationParent, fork_parent
from stoker.replica.preparation.permits import Permits
from stoker.replica.worker import TaskWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import FromReplica, Work

TIMEOUT_S = 60.0


class Toy(Stages):
    """Stages whose items say what their preparation does."""

    auto_class = ()

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        process = psutil.Process()
        what, argument = item
        if what == "sleep":
            time.sleep(argument)
        elif what == "refuse":
            raise InputError(argument, field="inputs", code="invalid_media")
        elif what == "fail":
            raise RuntimeError(argument)
        elif what == "die" and process.pid != argument:
            process.kill()
        features = {"x": torch.full((1, 3), float(what == "sleep"))}
        return [Sample(features, {"pid": process.pid, "said": argument})]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        return outputs[0]["said"]


def forked(most: int, permits: Permits | None = None) -> PreparationParent:
    """Returns a parent. It ends with its pool."""
    parent = fork_parent(most, permits or Permits.create())
    assert parent
    return parent


class Bench:
    """A worker for one model. Requests have one item."""

    def __init__(
        self, pipeline: str, folder: Path, flight: Path, parent: PreparationParent | None
    ) -> None:
        self.sent: queue.Queue[tuple[FromReplica, bytes | None]] = queue.Queue()
        self.stages = STAGES[pipeline](folder)
        engine = TorchEngine("cpu", "float32", 1)
        self.stages.attach(engine.load(folder, self.stages, lambda *_: None))
        self._pipeline = pipeline
        self.worker = TaskWorker(
            engine,
            self.stages,
            lambda message, content: self.sent.put((message, content)),
            FlightRecord(flight),
            # Each sample runs alone: the size of a batch changes the last bits of its answers.
            Calibration({"torch": 1}),
            preparation=parent,
        )
        self.worker.start()
        self._number = 0

    def submit(self, item: Any, key: str = "", parameters: Mapping[str, Any] | None = None) -> int:
        self._number += 1
        options = dict(parameters or {})
        self.worker.submit(Work(self._number, self._pipeline, [item], options, True, key=key))
        return self._number

    def receive(self, numbers: Sequence[int]) -> dict[int, tuple[FromReplica, Any]]:
        """Returns the messages that end these requests, with their decoded contents."""
        received: dict[int, tuple[FromReplica, Any]] = {}
        while received.keys() != set(numbers):
            message, content = self.sent.get(timeout=TIMEOUT_S)
            number: int = message.id  # type: ignore[union-attr]
            assert number not in received, "a request is answered once"
            received[number] = message, json.loads(content) if content else None
        return received

    def answers(
        self, items: Sequence[Any], parameters: Sequence[Mapping[str, Any]] = ()
    ) -> list[Any]:
        """Returns the answers to requests that are submitted at once.

        Args:
            parameters: parameters of the requests, in rotation.
        """
        options = itertools.cycle(parameters or [{}])
        numbers = [self.submit(item, parameters=next(options)) for item in items]
        received = self.receive(numbers)
        return [received[number][1] for number in numbers]

    @property
    def elsewhere(self) -> int:
        """Number of items that were prepared in processes."""
        pool = self.worker._preparer._pool
        return pool._pulse.steps if pool else 0

    @property
    def processes(self) -> list[int]:
        """Preparation processes, without their parent."""
        return self.worker._preparer.processes[1:]

    def warm_up(self, items: Sequence[Any], parameters: Sequence[Mapping[str, Any]] = ()) -> None:
        """Submits items until processes prepare them."""
        until = time.monotonic() + TIMEOUT_S
        before = self.elsewhere
        # The first is only compared.
        while self.elsewhere <= before + 1:
            assert time.monotonic() < until, self.worker._preparer._state
            self.answers(items, parameters)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
