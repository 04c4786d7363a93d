"""Detection of a hanging thread of a replica, with an injected clock."""

import threading

import pytest

from stoker.replica.counters import Counters, Stalls
from stoker.replica.queue_thread import QueueThread


class TestStalls:
    def test_h4_the_thread_that_hangs_is_found_beside_one_that_works(self) -> None:
        now = [0.0]
        counters = Counters()
        hanging, working = counters.pulse(), counters.pulse()
        stalls = Stalls(lambda: now[0])
        assert stalls.look(counters.pulses) == 0
        hanging.is_working = working.is_working = True
        for second in range(100):
            now[0] = float(second)
            working.stepped()
            assert stalls.look(counters.pulses) == second
        hanging.stepped()
        assert stalls.look(counters.pulses) == 0

    def test_h4_one_that_rests_or_gets_on_does_not_hang(self) -> None:
        now = [0.0]
        counters = Counters()
        pulse = counters.pulse()
        stalls = Stalls(lambda: now[0])
        for _ in range(10):
            now[0] += 50
            assert stalls.look(counters.pulses) == 0, "it rests"
        for _ in range(10):
            now[0] += 50
            with pulse:
                assert counters.at_work == 1
            assert stalls.look(counters.pulses) == 0, "it has done something each time"
        assert counters.progress == 10
        assert counters.at_work == 0


class TestQueueThread:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_h4_what_waits_for_a_thread_that_has_ended_is_work(self) -> None:
        counters = Counters()

        def handle(item: int) -> None:
            ended.set()
            raise KeyboardInterrupt

        ended = threading.Event()
        thread = QueueThread("test", handle, counters)
        thread.start()
        assert counters.at_work == 0
        thread.put(1)
        assert ended.wait(10)
        thread._thread.join(10)
        thread.put(2)
        assert counters.at_work == 1
        assert counters.progress == 0
