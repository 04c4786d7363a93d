"""Notifications to a replica's loop from other threads."""

from typing import Any

from stoker.replica.main import Stopping


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
