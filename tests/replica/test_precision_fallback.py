"""An answer with NaN in a half precision that `auto` chose: the worker continues in float32, and
the caller gets the answer.
"""

import io
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stoker.media.media import Media
from stoker.models.adapters.applying import Adapters
from stoker.models.engines.torch import TorchEngine
from stoker.models.tasks.registry import STAGES
from stoker.replica.calibration import Calibration
from stoker.replica.worker import TaskWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import (
    ChosenPrecision,
    PrecisionChanged,
    RequestFailure,
    RequestResult,
    Work,
)
from tests.support.compare import equal
from tests.support.media import image
from tests.support.models import overflowing_bert
from tests.tasks.test_zero_shot_image_classification import clip

TASK = "feature-extraction"
HALF = ChosenPrecision("float16", "chosen")
FINE, OVERFLOWS = "my name is", "clara"


class Bench:
    def __init__(
        self, folder: Path, tmp_path: Path, *, dtype: str = "auto", task: str = TASK
    ) -> None:
        self.task = task
        stages = STAGES[task](folder)
        self.engine = TorchEngine("cpu", dtype, 1)
        self.engine.precision = HALF if dtype == "auto" else None
        stages.attach(self.engine.load(folder, stages, lambda *_: None))
        self.sent: queue.Queue[tuple[Any, bytes | None]] = queue.Queue()
        self.worker = TaskWorker(
            self.engine,
            stages,
            lambda message, content: self.sent.put((message, content)),
            FlightRecord(tmp_path / "flight"),
            Calibration({"torch": 512}),
        )
        self.worker.start()

    def ask(self, number: int, *items: Any, **parameters: Any) -> None:
        self.worker.submit(Work(number, self.task, list(items), parameters, single=False))

    def messages(self, count: int) -> dict[Any, Any]:
        """Returns answers by their request's id, and other messages by their type."""
        received: dict[Any, Any] = {}
        for _ in range(count):
            message, content = self.sent.get(timeout=30)
            if isinstance(message, RequestResult):
                received[message.id] = json.loads(content or b"")
            else:
                received[getattr(message, "id", type(message))] = message
        return received


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []
    folder = overflowing_bert(tmp_path / "model", OVERFLOWS)

    def make(**options: Any) -> Bench:
        made.append(Bench(folder, tmp_path, **options))
        return made[-1]

    yield make
    for item in made:
        item.worker.stop()


def test_the_caller_gets_the_answer_in_float32(bench: Callable[..., Bench]) -> None:
    half, single = bench(), bench(dtype="float32")
    assert half.engine.dtype is torch.float16
    half.ask(1, FINE)
    before = half.messages(1)[1]
    half.ask(2, FINE, OVERFLOWS, FINE)
    received = half.messages(2)
    single.ask(2, FINE, OVERFLOWS, FINE)
    for vector, known in zip(received[2], single.messages(1)[2], strict=True):
        assert vector == pytest.approx(known)
    assert before[0] == pytest.approx(received[2][0], abs=1e-2)
    assert before[0] != received[2][0], "it was computed in half precision"
    changed = received[PrecisionChanged].precision
    assert changed.dtype == "float32"
    assert "an answer in float16 contained NaN or infinity" in changed.message
    assert half.engine.dtype is torch.float32
    assert half.worker.precision == changed


def test_the_labels_of_images_are_computed_again(tmp_path: Path) -> None:
    """They belong to the first answer, which is dropped."""
    folder = tmp_path / "clip"
    clip(folder)
    for path in folder.glob("*.safetensors"):
        tensors = safetensors.torch.load_file(path)
        tensors["visual_projection.weight"] *= 1e9
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    content = io.BytesIO()
    image(0).save(content, "PNG")
    picture = Media("image", content=content.getvalue())
    labels = {"candidate_labels": ["cat", "dog"], "hypothesis_template": "a photo of a {}."}
    answers: list[Any] = []
    for dtype in ("auto", "float32"):
        bench = Bench(folder, tmp_path, dtype=dtype, task="zero-shot-image-classification")
        bench.ask(1, picture, picture, **labels)
        answers.append(bench.messages(2 if dtype == "auto" else 1)[1])
        bench.worker.stop()
    equal(*answers)


def test_requests_at_once_cause_one_switch(bench: Callable[..., Bench]) -> None:
    half = bench()
    for number in range(1, 7):
        half.ask(number, OVERFLOWS, FINE)
    received = half.messages(7)
    assert set(received) == {*range(1, 7), PrecisionChanged}
    assert all(len(received[number]) == 2 for number in range(1, 7))
    half.ask(7, OVERFLOWS)
    assert set(half.messages(1)) == {7}


def test_a_fixed_dtype_is_kept(bench: Callable[..., Bench]) -> None:
    half = bench(dtype="float16")
    half.ask(1, OVERFLOWS)
    failure = half.messages(1)[1]
    assert isinstance(failure, RequestFailure)
    assert "'dtype': 'float32'" in failure.message
    assert half.engine.dtype is torch.float16


def test_too_little_memory_for_float32(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = bench()
    read = TorchEngine.read

    def short(engine: TorchEngine) -> Any:
        if engine.dtype is torch.float32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return read(engine)

    monkeypatch.setattr(TorchEngine, "read", short)
    half.ask(1, OVERFLOWS)
    assert isinstance(half.messages(1)[1], RequestFailure)
    half.ask(2, FINE)
    assert set(half.messages(1)) == {2}
    assert half.engine.dtype is torch.float16


def test_with_adapters_only_later_replicas_change(bench: Callable[..., Bench]) -> None:
    half = bench()
    half.engine.adapters = Adapters(half.engine.model, half.engine.folder, 1 << 20)
    half.ask(1, OVERFLOWS)
    received = half.messages(2)
    assert isinstance(received[1], RequestFailure)
    assert received[PrecisionChanged].precision.dtype == "float32"
    half.ask(2, OVERFLOWS)
    assert set(half.messages(1)) == {2}, "it is reported once"
    assert half.engine.dtype is torch.float16
