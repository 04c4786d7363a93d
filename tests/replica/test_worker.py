"""The worker's threads with real torch and a real tiny model, but without a separate process."""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.models.tasks.registry import STAGES
from stoker.replica.calibration import Calibration
from stoker.replica.worker import TaskWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import Cancelled, FromReplica, RequestFailure, RequestResult, Work
from tests.support.models import tiny_bert

POISON = "berkeley"


class Gate(TorchEngine):
    """A torch engine that the test can block. It counts batches and fails on one token."""

    def __init__(self, poison: int | None = None) -> None:
        super().__init__("cpu", "auto", 1)
        self.open = threading.Event()
        self.entered = threading.Event()
        self.open.set()
        self.batches: list[int] = []
        self.poison = poison
        self.shuts_after = -1
        """Number of batches after which the engine blocks. -1 means never."""

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        if len(self.batches) == self.shuts_after:
            self.open.clear()
        self.entered.set()
        self.open.wait(20)
        self.batches.append(len(samples))
        if self.poison and any(
            (sample.features["input_ids"] == self.poison).any() for sample in samples
        ):
            raise RuntimeError("a kernel failed")
        return super().forward(samples, watch)


class Bench:
    def __init__(self, folder: Path, tmp_path: Path, poison: bool = False) -> None:
        self.sent: queue.Queue[tuple[FromReplica, bytes | None]] = queue.Queue()
        stages = STAGES["token-classification"](folder)
        vocabulary = stages.tokenizer.get_vocab()  # type: ignore[attr-defined]
        self.engine = Gate(vocabulary[POISON] if poison else None)
        stages.attach(self.engine.load(folder, stages, lambda *_: None))
        self.worker = TaskWorker(
            self.engine,
            stages,
            lambda message, content: self.sent.put((message, content)),
            FlightRecord(tmp_path / "flight"),
            Calibration({"torch": 512}),
        )
        self.worker.start()

    def submit(self, number: int, *items: str, single: bool = False) -> None:
        self.worker.submit(Work(number, "token-classification", list(items), {}, single))

    def answers(self, count: int) -> dict[int, tuple[FromReplica, Any]]:
        received: dict[int, tuple[FromReplica, Any]] = {}
        for _ in range(count):
            message, content = self.sent.get(timeout=20)
            assert isinstance(message, RequestResult | RequestFailure)
            received[message.id] = (message, json.loads(content) if content else None)
        return received


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def make_bench(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(folder, tmp_path, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.engine.open.set()
        bench.worker.stop()


def test_requests_share_a_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.engine.open.clear()
    bench.submit(1, "my name is clara", single=True)
    assert bench.engine.entered.wait(20)
    for number in range(2, 8):
        bench.submit(number, "i live in california", single=True)
    while len(bench.worker._queue) < 6:
        pass
    bench.engine.open.set()
    answers = bench.answers(7)
    assert bench.engine.batches == [1, 6]
    assert all(isinstance(message, RequestResult) for message, _ in answers.values())


def test_only_the_failing_item_fails(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(poison=True)
    bench.engine.open.clear()
    bench.submit(1, "my name is clara", single=True)
    assert bench.engine.entered.wait(20)
    bench.submit(2, "i live in california", single=True)
    bench.submit(3, "the model", f"i live in {POISON}")
    while len(bench.worker._queue) < 3:
        pass
    bench.engine.open.set()
    answers = bench.answers(3)
    failure = answers[3][0]
    assert isinstance(failure, RequestFailure)
    assert (failure.code, failure.param) == ("inference_failed", "inputs[1]")
    assert "kernel" not in failure.message
    assert isinstance(answers[2][0], RequestResult)


def test_cancelled_work_never_runs(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.engine.open.clear()
    bench.submit(1, "my name is clara", single=True)
    assert bench.engine.entered.wait(20)
    bench.submit(2, "i live in california", single=True)
    while not len(bench.worker._queue):
        pass
    bench.worker.cancel(2)
    assert bench.sent.get(timeout=20)[0] == Cancelled(2, {}), "nothing was done for it"
    bench.worker.cancel(2)
    bench.engine.open.set()
    assert set(bench.answers(1)) == {1}
    bench.submit(3, "the team", single=True)
    assert set(bench.answers(1)) == {3}
    assert bench.engine.batches == [1, 1]
    assert bench.worker.accepted == 0


def test_what_was_done_for_cancelled_work_is_told(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.submit(1, "my name is clara", single=True)
    result = bench.answers(1)[1][0]
    assert isinstance(result, RequestResult)
    assert result.counts["input_tokens"] > 0
    bench.worker._queue.budget = 1
    bench.engine.shuts_after = 2
    bench.submit(2, "my name is clara", "i live in california")
    request = bench.worker._requests[2]
    while request.missing == 2:
        pass
    bench.worker.cancel(2)
    assert bench.sent.get(timeout=20)[0] == Cancelled(2, result.counts), "the first item was done"


def test_padding_changes_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    short, long = "clara", "my name is clara and i live in california " * 4
    bench.submit(1, short, single=True)
    alone = bench.answers(1)[1][1]
    bench.submit(2, long, short)
    together = bench.answers(1)[2][1][1]
    assert len(alone) == len(together)
    for single, other in zip(alone, together, strict=True):
        assert single["score"] == pytest.approx(other["score"], abs=1e-5)
        assert {**single, "score": 0} == {**other, "score": 0}


def test_stop_finishes_what_was_accepted(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for number in range(1, 20):
        bench.submit(number, "my name is clara", single=True)
    bench.worker.stop()
    assert set(bench.answers(19)) == set(range(1, 20))
