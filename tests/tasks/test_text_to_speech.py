"""Speech in this process. The tests check the order of events and never their times."""

import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.models.tasks.registry import STAGES
from stoker.replica.calibration import Calibration
from stoker.replica.worker import TaskWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import Cancelled, FromReplica, Parts, RequestFailure, RequestResult, Work
from tests.support import speech

PIPELINE = "text-to-speech"
PIECES = [f"This is the sentence of the number {word}." for word in ("one", "two", "three")]
FINISHING = {"form": "pcm", "speed": 1.0, "events": False}


class Gate(TorchEngine):
    """Engine that speaks one sentence for every pass that the test permits."""

    def __init__(self) -> None:
        super().__init__("cpu", "auto", 1)
        self.passes = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.samples: list[int] = []
        self.spoil = False

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        self.begun.release()
        assert self.passes.acquire(timeout=20)
        self.samples.append(len(samples))
        outputs = super().forward(samples, watch)
        if self.spoil:
            return [{**output, "waveform": output["waveform"] * torch.nan} for output in outputs]
        return outputs


class Bench:
    def __init__(self, folder: Path, tmp_path: Path) -> None:
        self.sent: queue.Queue[tuple[FromReplica, bytes | None]] = queue.Queue()
        stages = STAGES[PIPELINE](folder)
        self.engine = Gate()
        stages.attach(self.engine.load(folder, stages, lambda *_: None))
        self.worker = TaskWorker(
            self.engine,
            stages,
            lambda message, content: self.sent.put((message, content)),
            FlightRecord(tmp_path / "flight"),
            Calibration({"torch": 1 << 30}),
        )
        self.worker.start()

    def submit(self, number: int, text: str, *, stream: bool = True) -> None:
        parameters = {"voice": None, "seed": 3}
        finishing = FINISHING if stream else {}
        self.worker.submit(Work(number, PIPELINE, [text], parameters, True, finishing, stream))

    def next(self) -> tuple[FromReplica, bytes | None]:
        return self.sent.get(timeout=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech.vits(tmp_path_factory.mktemp("speech") / "vits")


@pytest.fixture
def bench(folder: Path, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(folder, tmp_path)
    yield made
    made.engine.passes.release(100)
    made.worker.stop()


def test_each_sentence_is_sent_before_the_next_is_spoken(bench: Bench, folder: Path) -> None:
    bench.submit(1, " ".join(PIECES))
    sound = b""
    for _ in PIECES:
        assert bench.sent.empty()
        bench.engine.passes.release()
        message, content = bench.next()
        assert isinstance(message, Parts)
        assert message.ids == [1]
        sound += content or b""
    assert isinstance(bench.next()[0], RequestResult)
    assert bench.engine.samples == [1, 1, 1]
    expected = numpy.concatenate([speech.spoken(folder, piece, 3) for piece in PIECES])
    received = numpy.frombuffer(sound, "<i2") / 32768
    assert numpy.abs(received - expected).max() <= 1 / 32768


def test_whole_answer_is_the_sentences_sound(bench: Bench, folder: Path) -> None:
    bench.submit(1, " ".join(PIECES), stream=False)
    bench.engine.passes.release(100)
    message, content = bench.next()
    assert isinstance(message, RequestResult)
    assert message.id == 1
    answer = json.loads(content or b"")
    expected = numpy.concatenate([speech.spoken(folder, piece, 3) for piece in PIECES])
    assert answer["sampling_rate"] == speech.RATE
    assert numpy.abs(numpy.array(answer["audio"]) - expected).max() < 1e-5


def test_whoever_goes_away_is_not_spoken_for(bench: Bench) -> None:
    bench.submit(1, " ".join(PIECES))
    bench.engine.passes.release()
    assert isinstance(bench.next()[0], Parts)
    bench.worker.cancel(1)
    bench.submit(2, PIECES[0])
    bench.engine.passes.release(100)
    cancelled, part, result = (bench.next()[0] for _ in range(3))
    assert (isinstance(cancelled, Cancelled), cancelled.id) == (True, 1)
    assert isinstance(part, Parts)
    assert (part.ids, isinstance(result, RequestResult), result.id) == ([2], True, 2)
    # The first of the three, perhaps the second if it was already running, and the other request's
    # sentence.
    assert len(bench.engine.samples) <= 3


def test_seeds_do_not_depend_on_company(bench: Bench) -> None:
    bench.submit(1, PIECES[0])
    bench.submit(2, PIECES[1])
    bench.submit(3, PIECES[0])
    bench.engine.passes.release(100)
    parts: dict[int, bytes] = {}
    for _ in range(6):
        message, content = bench.next()
        if isinstance(message, Parts):
            parts[message.ids[0]] = content or b""
    assert parts[1] == parts[3] != parts[2]


def test_what_is_no_sound_is_an_error(bench: Bench) -> None:
    bench.engine.spoil = True
    bench.engine.passes.release(100)
    bench.submit(1, PIECES[0])
    message, _ = bench.next()
    assert isinstance(message, RequestFailure)
    assert (message.code, message.param) == ("inference_failed", "input")


class TestRefusedFolders:
    @pytest.mark.parametrize(
        "name", ["vocoder/model.safetensors", "speaker_embeddings.safetensors"]
    )
    def test_speecht5_without_a_part(self, tmp_path: Path, name: str) -> None:
        folder = speech.speecht5(tmp_path / "model")
        (folder / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is missing"):
            STAGES[PIPELINE](folder)

    def test_a_vits_that_needs_espeak(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="espeak"):
            STAGES[PIPELINE](speech.vits(tmp_path / "model", phonemize=True))
