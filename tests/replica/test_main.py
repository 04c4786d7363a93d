"""A replica's loop: messages of the gateway, and notifications from other threads."""

from typing import Any

import pytest

from stoker.replica import main
from stoker.replica.counters import Counters
from stoker.replica.main import Scales, Stopping, Weight, _pass_on
from stoker.wire.protocol import Cancel
from stoker.wire.sleep import Sleep, Wake


def test_the_loop_is_woken_when_it_can_see_that_the_worker_has_stopped() -> None:
    """The loop polls once and then not before its next heartbeat."""

    class Worker:
        def stop(self) -> None:
            did.append("stopped")

    did: list[str] = []
    worker: Any = Worker()
    stopping = Stopping(worker, lambda: did.append(f"woken: {stopping.is_done}"))
    stopping.start()
    stopping.join()
    assert did == ["stopped", "woken: True"]


def test_moves_are_passed_to_a_worker_that_can_sleep() -> None:
    class Worker:
        sleep_bytes = 5

        def move(self, message: Sleep | Wake) -> None:
            did.append(message)

        def cancel(self, request_id: int) -> None:
            did.append(request_id)

    did: list[Any] = []
    worker: Any = Worker()
    for message in (Cancel(7), Sleep(), Wake()):
        _pass_on(message, worker)
    assert did == [7, Sleep(), Wake()]


def test_moves_of_another_worker_are_ignored() -> None:
    worker: Any = object()
    _pass_on(Sleep(), worker)


def test_the_need_is_measured_after_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it, the weights are not mapped."""

    class Worker:
        engine, accepted, children = "torch", 0, ()

        def __init__(self) -> None:
            self.counters = Counters()

    def weigh(_processes: object) -> Weight:
        times.append(len(times))
        return Weight(len(times), len(times))

    times: list[int] = []
    monkeypatch.setattr(main, "weigh", weigh)
    monkeypatch.setattr(main, "WEIGHING_S", 3600)
    worker: Any = Worker()
    scales = Scales()
    for _ in range(3):
        scales.look(worker)
    assert scales.weight == (1, 0)
    worker.counters.passed(1, 0.1)
    for _ in range(3):
        scales.look(worker)
    assert scales.weight == (2, 2)
