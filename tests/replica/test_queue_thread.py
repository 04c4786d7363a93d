"""Order in which a thread handles its queued items."""

import threading

from stoker.replica.counters import Counters
from stoker.replica.queue_thread import Lanes, QueueThread
from tests.replica.preparation.support import wait_until


class TestLanes:
    def test_parties_take_turns(self) -> None:
        lanes: Lanes[str] = Lanes()
        for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
            lanes.add(item, item[0])
        lanes.add("last", is_last=True)
        lanes.add("first")
        order: list[str] = []
        while lanes:
            order.append(lanes.next())
        assert order == ["first", "a1", "b1", "c1", "a2", "b2", "a3", "last"]


class TestQueueThread:
    def test_one_does_not_wait_for_a_thousand_of_another_party(self) -> None:
        handled: list[str] = []
        begun, going = threading.Event(), threading.Event()

        def handle(item: str) -> None:
            if not handled:
                begun.set()
                going.wait(60)
            handled.append(item)

        counters = Counters()
        thread = QueueThread("test", handle, counters)
        thread.start()
        thread.put("flood", "a")
        assert begun.wait(60)
        for _ in range(1000):
            thread.put("flood", "a")
        thread.put("one", "b")
        thread.put("done")
        assert counters.at_work == 1
        going.set()
        thread.finish()
        assert handled.index("done") == 1
        assert handled.index("one") <= 3
        assert len(handled) == 1003
        assert counters.progress == 1003
        assert counters.at_work == 0

    def test_all_that_was_put_is_handled_before_the_end_and_the_last_at_last(self) -> None:
        handled: list[int] = []
        thread = QueueThread("test", handled.append, Counters())
        thread.put(-1, is_last=True)
        for number in range(100):
            thread.put(number, str(number % 3))
        thread.start()
        thread.finish()
        assert handled[-1] == -1
        assert sorted(handled) == [*range(-1, 100)]

    def test_another_thread_handles_an_item_only_while_nothing_waits(self) -> None:
        handled: list[str] = []
        begun, going = threading.Event(), threading.Event()

        def handle(item: str) -> None:
            handled.append(f"{item} by {threading.current_thread().name}")
            if item == "slow":
                begun.set()
                going.wait(60)

        threads: list[str] = []
        thread = QueueThread(
            "test",
            handle,
            Counters(),
            before_waiting=lambda: threads.append(threading.current_thread().name),
        )
        me = threading.current_thread().name
        assert thread.handle_now("first")
        thread.put("slow")
        assert not thread.handle_now("early")
        thread.start()
        assert begun.wait(60)
        assert not thread.handle_now("early")
        going.set()
        wait_until(lambda: len(threads) == 1)
        assert thread.handle_now("last")
        thread.finish()
        assert handled == [f"first by {me}", "slow by test", f"last by {me}"]
        assert threads == ["test"]
