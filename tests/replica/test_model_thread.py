"""The thread of a language model pauses before background steps if the model asks for it."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stoker.base.fairness import Tier
from stoker.models.llm.interface import Submission
from stoker.replica.counters import Counters
from stoker.replica.model_thread import ModelThread
from stoker.replica.passes import Passes
from stoker.wire.flight import FlightRecord
from stoker.wire.generation_request import Sampling

LONG_S = 30.0


class PausingModel:
    """Ends each sequence in one step. Pauses while only background sequences are there."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._submitted: list[Submission] = []
        self.steps: list[list[int]] = []
        self.asked = threading.Event()
        self.stepped = threading.Event()

    @property
    def running(self) -> int:
        return len(self._submitted)

    @property
    def at_work(self) -> bool:
        return bool(self._submitted)

    @property
    def pause_s(self) -> float:
        is_background = all(each.tier.is_background for each in self._submitted)
        pause_s, self._pause_s = self._pause_s if is_background else 0.0, 0.0
        self.asked.set()
        return pause_s

    def submit(self, submission: Submission) -> None:
        self._submitted.append(submission)

    def step(self) -> list[Any]:
        self.steps.append([each.id for each in self._submitted])
        self._submitted.clear()
        self.stepped.set()
        return []

    def enter_thread(self) -> None: ...

    def wake(self) -> None: ...


def started(model: Any, folder: Path) -> ModelThread:
    sequences: Any = SimpleNamespace(request_ids=list)
    thread = ModelThread(
        model,
        sequences,
        FlightRecord(folder / "flight"),
        Counters(),
        prepare=None,
        passes=Passes(),
        adopted=lambda _adopted: None,
        stepped=lambda _outputs: None,
        moved=lambda _moved: None,
    )
    thread.start()
    return thread


def sequence(number: int, tier: Tier) -> Submission:
    return Submission(id=number, prompt=[1], sampling=Sampling(), tier=tier)


def test_a_message_ends_the_pause(tmp_path: Path) -> None:
    model = PausingModel(LONG_S)
    thread = started(model, tmp_path)
    thread.submit([sequence(1, Tier.FLEX)])
    assert model.asked.wait(LONG_S / 2)
    thread.submit([sequence(2, Tier.DEFAULT)])
    assert model.stepped.wait(LONG_S / 2)
    thread.finish()
    assert model.steps == [[1, 2]]


def test_a_pause_ends(tmp_path: Path) -> None:
    model = PausingModel(0.01)
    thread = started(model, tmp_path)
    thread.submit([sequence(1, Tier.FLEX)])
    assert model.stepped.wait(LONG_S)
    thread.finish()
    assert model.steps == [[1]]
