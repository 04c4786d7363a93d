"""Batches that are prepared while a device computes, with a real tiny model on a thread as the
device.
"""

import json
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.models.engines.buckets import PaddedBuckets
from stoker.models.engines.graph_demand import LEAST_USES
from stoker.models.engines.graphs import GraphCache
from stoker.models.engines.recorders import HostRecorder, Recording
from stoker.models.engines.recording_guard import RecordingGuard
from stoker.models.engines.torch import LaunchedBatch, StagedBatch, TorchEngine
from stoker.models.engines.transfers import Outputs
from stoker.models.stages.base import Sample
from stoker.models.tasks.registry import STAGES
from stoker.replica import idle_work
from stoker.replica.calibration import Calibration
from stoker.replica.counters import Stalls
from stoker.replica.overlap import StagingPace
from stoker.replica.worker import TaskWorker
from stoker.wire import flight
from stoker.wire.flight import FlightRecord
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import (
    Adopted,
    Cancelled,
    Execution,
    FromReplica,
    RequestFailure,
    RequestResult,
    Work,
)
from tests.support.models import tiny_bert
from tests.support.threaded_stream import ThreadedStream

POISON, UNSTAGED = "berkeley", "hot"


class BackgroundEngine(TorchEngine):
    """Engine on a thread as its device. One token fails its passes, another one its staging."""

    def __init__(self) -> None:
        super().__init__("cpu", "float32", 1)
        self.device_thread = ThreadedStream()
        self.stream = self.device_thread
        self.staged: list[int] = []
        self.poison = self.unstaged = -1
        self.adopted_at: tuple[int, int] | None = None
        self.launch_s = 0.0
        """Seconds that each launch takes in addition."""

    def stage(self, samples: Sequence[Sample]) -> StagedBatch:
        self.staged.append(len(samples))
        staged = super().stage(samples)
        if (staged.inputs["input_ids"] == self.unstaged).any():
            raise RuntimeError("the inputs could not be copied")
        return staged

    def launch(self, staged: StagedBatch) -> LaunchedBatch:
        launched = super().launch(staged)
        time.sleep(self.launch_s)
        return launched

    def run(self, call: Any, batch: Any) -> Any:
        if (batch["input_ids"] == self.poison).any():
            raise RuntimeError("a kernel failed")
        return super().run(call, batch)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        def take_over() -> None:
            self.adopted_at = self.device_thread.launched, self.device_thread.ended

        return take_over


class Bench:
    def __init__(self, folder: Path, tmp_path: Path) -> None:
        self.sent: queue.Queue[tuple[FromReplica, bytes | None]] = queue.Queue()
        stages = STAGES["token-classification"](folder)
        vocabulary = stages.tokenizer.get_vocab()  # type: ignore[attr-defined]
        self.engine = BackgroundEngine()
        self.engine.poison, self.engine.unstaged = vocabulary[POISON], vocabulary[UNSTAGED]
        self.device = self.engine.device_thread
        stages.attach(self.engine.load(folder, stages, lambda *_: None))
        self.record = tmp_path / "flight"
        self.worker = TaskWorker(
            self.engine,
            stages,
            lambda message, content: self.sent.put((message, content)),
            FlightRecord(self.record),
            Calibration({"torch": 512}),
        )
        self.worker.start()

    def submit(self, number: int, *items: str) -> None:
        self.worker.submit(Work(number, "token-classification", list(items), {}, False))

    def answers(self, count: int) -> dict[int, Any]:
        """Returns the answers by request, in the order of their arrival. A failure stays a
        message.
        """
        received: dict[int, Any] = {}
        for _ in range(count):
            message, content = self.sent.get(timeout=20)
            assert isinstance(message, RequestResult | RequestFailure)
            received[message.id] = json.loads(content) if content else message
        return received

    def close(self) -> None:
        self.device.is_open.set()
        self.worker.stop()
        self.device.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def bench(folder: Path, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(folder, tmp_path)
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.001)


def blocked(bench: Bench) -> None:
    """Sends request 1 and leaves its pass on the device."""
    bench.device.is_open.clear()
    bench.submit(1, "my name is clara")
    until(lambda: bench.device.launched == 1)


def test_the_next_batch_is_staged_while_one_computes(bench: Bench) -> None:
    blocked(bench)
    bench.submit(2, "i live in california")
    until(lambda: len(bench.engine.staged) == 2)
    assert (bench.device.launched, bench.device.ended) == (1, 0)
    bench.submit(3, "the team")
    until(lambda: len(bench.worker._queue) == 1)
    assert bench.engine.staged == [1, 1], "at most one batch is staged"
    bench.device.is_open.set()
    assert list(bench.answers(3)) == [1, 2, 3]
    assert bench.device.most == 1, "one pass at a time"
    assert bench.worker.counters.batches.samples == 3


def test_results_are_distributed_after_the_next_launch(bench: Bench) -> None:
    launched_at: list[int] = []
    finished = bench.worker.finished

    def recorded(*results: Any) -> None:
        launched_at.append(bench.device.launched)
        finished(*results)

    bench.worker.finished = recorded  # type: ignore[method-assign]
    blocked(bench)
    bench.submit(2, "i live in california")
    until(lambda: len(bench.engine.staged) == 2)
    bench.device.is_open.set()
    bench.answers(2)
    assert launched_at == [2, 2]


def test_results_do_not_wait_for_a_long_launch(bench: Bench) -> None:
    bench.engine.launch_s = 0.03
    launched_at: list[int] = []
    finished = bench.worker.finished

    def recorded(*results: Any) -> None:
        launched_at.append(bench.device.launched)
        finished(*results)

    bench.worker.finished = recorded  # type: ignore[method-assign]
    blocked(bench)
    bench.submit(2, "i live in california")
    until(lambda: len(bench.engine.staged) == 2)
    bench.device.is_open.set()
    bench.answers(2)
    assert launched_at == [1, 2]


def test_answers_equal_those_of_a_synchronous_engine(
    bench: Bench, folder: Path, tmp_path: Path
) -> None:
    texts = ["my name is clara", "i live in california", "the team " * 20, "clara"] * 5
    stages = STAGES["token-classification"](folder)
    engine = TorchEngine("cpu", "float32", 1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    for number, text in enumerate(texts, 1):
        bench.submit(number, text)
    answers = bench.answers(len(texts))
    for number, text in enumerate(texts, 1):
        outputs = engine.forward(stages.preprocess(text, {}))
        expected = json.loads(json.dumps(stages.postprocess(outputs, {}), default=float))
        (received,) = answers[number]
        assert len(received) == len(expected)
        for ours, theirs in zip(received, expected, strict=True):
            assert ours.pop("score") == pytest.approx(theirs.pop("score"), abs=1e-5)
            assert ours == theirs


def test_a_failed_pass_fails_only_its_input(bench: Bench) -> None:
    blocked(bench)
    bench.submit(2, "the model", f"i live in {POISON}")
    until(lambda: len(bench.engine.staged) == 2)
    bench.submit(3, "i live in california")
    bench.submit(4, f"i live in {POISON}")
    bench.device.is_open.set()
    answers = bench.answers(4)
    assert [isinstance(answers[number], RequestFailure) for number in range(1, 5)] == [
        False,
        True,
        False,
        True,
    ]
    assert (answers[2].code, answers[2].param) == ("inference_failed", "inputs[1]")


def test_a_batch_that_cannot_be_staged_loses_no_other(bench: Bench) -> None:
    blocked(bench)
    bench.submit(2, UNSTAGED)
    until(lambda: bench.engine.staged == [1, 1])
    bench.submit(3, "the team")
    bench.device.is_open.set()
    answers = bench.answers(3)
    assert isinstance(answers[2], RequestFailure)
    assert isinstance(answers[1], list)
    assert isinstance(answers[3], list)


def test_the_worker_is_replaced_if_its_device_is_lost(bench: Bench) -> None:
    bench.submit(1, f"i live in {POISON}")
    assert isinstance(bench.answers(1)[1], RequestFailure)
    assert bench.worker.alive, "the device computes other inputs"
    bench.device.is_lost = True
    bench.submit(2, "the team")
    assert isinstance(bench.answers(1)[2], RequestFailure)
    assert not bench.worker.alive


def test_a_staged_batch_that_is_cancelled_is_not_launched(bench: Bench) -> None:
    blocked(bench)
    bench.submit(2, "i live in california")
    until(lambda: bench.engine.staged == [1, 1])
    bench.worker.cancel(2)
    assert bench.sent.get(timeout=20)[0] == Cancelled(2, {})
    bench.device.is_open.set()
    assert set(bench.answers(1)) == {1}
    bench.submit(3, "the team")
    assert set(bench.answers(1)) == {3}
    assert bench.device.launched == 2
    assert bench.worker.accepted == 0


def test_a_converted_model_is_adopted_between_passes(bench: Bench) -> None:
    blocked(bench)
    bench.submit(2, "the team")
    until(lambda: bench.engine.staged == [1, 1])
    bench.worker.adopt(Execution("", "f32", ""))
    until(lambda: bench.worker._engine_thread._adoption.pending)
    bench.submit(3, "i live in california")
    until(lambda: len(bench.worker._queue) == 1)
    bench.device.is_open.set()
    messages = [bench.sent.get(timeout=20)[0] for _ in range(4)]
    assert Adopted(True) in messages
    assert bench.engine.adopted_at == (2, 2)


def test_a_device_that_hangs_counts_as_stalled(bench: Bench) -> None:
    now = 0.0
    stalls = Stalls(lambda: now)
    blocked(bench)
    bench.submit(2, "i live in california")
    until(lambda: len(bench.engine.staged) == 2)
    stalls.look(bench.worker.counters.pulses)
    now = 30.0
    assert stalls.look(bench.worker.counters.pulses) == 30
    assert flight.read_slots(bench.record)[1] == {1}, "a staged batch is not blamed"
    bench.device.is_open.set()
    bench.answers(2)
    until(lambda: not bench.worker.counters.at_work)
    assert stalls.look(bench.worker.counters.pulses) == 0
    assert flight.read(bench.record) == set()


def test_stop_finishes_what_was_accepted(bench: Bench) -> None:
    for number in range(1, 40):
        bench.submit(number, "my name is clara")
    bench.worker.stop()
    assert set(bench.answers(39)) == set(range(1, 40))
    assert bench.device.most == 1


class TestStagingPace:
    def test_the_first_batch_is_prepared_at_once(self) -> None:
        assert StagingPace().spare_s(0) == 0

    def test_the_next_batch_is_ready_when_the_pass_ends(self) -> None:
        pace = StagingPace()
        pace.passed(0.010)
        pace.staged(0.002)
        assert pace.spare_s(0.001) == pytest.approx(0.007)
        assert pace.spare_s(0.020) == 0

    def test_one_slow_pass_is_soon_forgotten(self) -> None:
        pace = StagingPace()
        pace.passed(1.0)
        pace.passed(0.01)
        assert pace.spare_s(0) == pytest.approx(0.01)
        pace.passed(1.0)
        assert pace.spare_s(0) < 0.31


def test_passes_are_recorded_between_batches_and_replayed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_work, "REST", 0)
    bench = Bench(folder, tmp_path)
    buckets = PaddedBuckets(bench.engine.stages)
    graphs = GraphCache(bench.engine.run, buckets, HostRecorder(), step_s=60)
    recorded_at: list[tuple[int, int]] = []
    record = graphs.record

    def recorded() -> None:
        recorded_at.append((bench.device.launched, bench.device.ended))
        record()

    monkeypatch.setattr(graphs, "record", recorded)
    text = "my name is clara and i live in california"
    bench.submit(1, text)
    usual = bench.answers(1)[1]
    bench.engine.graphs = graphs
    for number in range(2, 2 + LEAST_USES):
        bench.submit(number, text)
        assert bench.answers(1)[number] == usual
    until(lambda: graphs.state.count == 1)
    assert recorded_at == [(1 + LEAST_USES, 1 + LEAST_USES)], "no batch computes meanwhile"
    for number in range(10, 40):
        bench.submit(number, text)
    answers = bench.answers(30)
    assert bench.worker.recorded == RecordedPasses(1)
    bench.close()
    for (ours,) in answers.values():
        for one, other in zip(ours, usual[0], strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=1e-5)
            assert {**one, "score": 0} == {**other, "score": 0}


class LosingRecorder(HostRecorder):
    """Fails while it records a pass, and loses its device."""

    def record(self, compute: Callable[[], Outputs]) -> Recording:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def is_usable(self) -> bool:
        return False


def test_a_device_that_fails_in_a_recording_fails_no_request(bench: Bench) -> None:
    """The replica ends. Requests in the queue have no answer and are not in the flight record, so
    the gateway sends them to another replica.
    """
    record = FlightRecord(bench.record)
    bench.engine.graphs = GraphCache(
        bench.engine.run,
        PaddedBuckets(bench.engine.stages),
        LosingRecorder(),
        guard=RecordingGuard(record.note_recording),
        step_s=60,
    )
    for number in range(LEAST_USES):
        bench.submit(number, "the team")
        bench.answers(1)
    until(lambda: bench.worker.is_lost)
    assert not bench.worker.alive
    bench.submit(9, "the team")
    until(lambda: len(bench.worker._queue) == 1)
    assert bench.sent.empty()
    assert flight.read(bench.record) == set()
    assert flight.read_recording(bench.record).startswith("input_ids 1x16")
