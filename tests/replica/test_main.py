"""A replica's loop: messages of the gateway, and notifications from other threads."""

from typing import Any

from stoker.replica.main import Stopping, _pass_on
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
