"""A converted model is prepared during the work and adopted between two passes."""

import threading
from collections.abc import Callable

from stoker.replica.adoption import Adoption, Prepare
from stoker.wire.protocol import Execution

EXECUTION = Execution("/converted", "f32", "/compiled")


class World:
    def __init__(self, prepare: Prepare | None) -> None:
        self.woken = threading.Event()
        self.ended: list[bool] = []
        self.adoption = Adoption(prepare, self.woken.set, self.ended.append)


def after(taken: list[Execution]) -> Prepare:
    def prepare(execution: Execution) -> Callable[[], None]:
        return lambda: taken.append(execution)

    return prepare


class TestAdoption:
    def test_taken_on_the_models_thread(self) -> None:
        adopted: list[Execution] = []
        world = World(after(adopted))
        world.adoption.offer(EXECUTION)
        assert world.woken.wait(60)
        assert world.adoption.pending
        assert not world.adoption.is_preparing
        assert (adopted, world.ended) == ([], [])
        world.adoption.adopt()
        assert (adopted, world.ended) == ([EXECUTION], [True])
        assert not world.adoption.pending
        world.adoption.adopt()
        assert (adopted, world.ended) == ([EXECUTION], [True])

    def test_offering_does_not_wait(self) -> None:
        may_end = threading.Event()
        adopted: list[Execution] = []

        def prepare(execution: Execution) -> Callable[[], None]:
            assert may_end.wait(60)
            return after(adopted)(execution)

        world = World(prepare)
        world.adoption.offer(EXECUTION)
        assert world.adoption.is_preparing
        assert not world.adoption.pending
        # Nothing is prepared yet, and the work continues.
        world.adoption.adopt()
        assert world.ended == []
        may_end.set()
        assert world.woken.wait(60)
        assert world.adoption.pending

    def test_cannot_be_made_ready(self) -> None:
        def prepare(_: Execution) -> Callable[[], None]:
            raise RuntimeError("no such operation")

        world = World(prepare)
        world.adoption.offer(EXECUTION)
        assert world.woken.wait(60)
        assert not world.adoption.pending
        assert world.ended == [False]

    def test_cannot_be_taken_over(self) -> None:
        def take_over() -> None:
            raise RuntimeError("no memory")

        world = World(lambda _: take_over)
        world.adoption.offer(EXECUTION)
        assert world.woken.wait(60)
        world.adoption.adopt()
        assert world.ended == [False]

    def test_stays_as_it_is(self) -> None:
        world = World(None)
        world.adoption.offer(EXECUTION)
        assert world.ended == [False]
        assert not world.adoption.is_preparing
