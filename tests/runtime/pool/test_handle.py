"""States of a replica: the legal transitions, and errors for all others."""

import asyncio
from typing import Any

import pytest

from stoker.runtime.interface import LoadError
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.lifecycle import KillCause, TransitionError
from stoker.wire.protocol import Loaded, LoadFailed, pack
from stoker.wire.sleep import Moved, Sleep, Wake
from tests.runtime.pool.world import EXECUTION, SHUTDOWN, Clock, Flight, Wire, settle


@pytest.fixture
async def replica() -> ReplicaHandle:
    wire: Any = Wire()
    return ReplicaHandle(
        replica_id="rep_1", flight=Flight(), generation=0, channel=wire, clock=Clock()
    )


@pytest.fixture
def wire(replica: ReplicaHandle) -> Wire:
    wire: Any = replica.channel
    return wire


class TestTransitions:
    async def test_from_start_to_end(self, replica: ReplicaHandle, wire: Wire) -> None:
        assert replica.status is Status.STARTING
        replica.mark_ready()
        assert replica.status is Status.READY
        assert replica.ready_at == replica.last_used == 1000
        replica.shut_down(5)
        assert replica.status is Status.STOPPING
        assert replica.stop_deadline == 1005
        assert wire.sent == [SHUTDOWN]
        assert not replica.has_ended
        replica.mark_ended("exit code 0")
        assert replica.has_ended
        assert replica.status is Status.STOPPING, "the last status before its end"

    @pytest.mark.parametrize("steps", [0, 1, 2])
    async def test_it_may_end_in_each_state(self, replica: ReplicaHandle, steps: int) -> None:
        for step in [replica.mark_ready, lambda: replica.shut_down(5)][:steps]:
            step()
        replica.mark_ended("signal 9")
        assert replica.has_ended

    async def test_a_starting_one_cannot_stop(self, replica: ReplicaHandle, wire: Wire) -> None:
        for stop in (replica.shut_down, replica.shut_down_when_done):
            with pytest.raises(TransitionError, match="rep_1 is starting and cannot be stopping"):
                stop(5)
        assert replica.status is Status.STARTING
        assert not wire.sent

    async def test_it_is_ready_once(self, replica: ReplicaHandle) -> None:
        replica.mark_ready()
        with pytest.raises(TransitionError, match="rep_1 is ready and cannot be ready"):
            replica.mark_ready()
        replica.shut_down(5)
        with pytest.raises(TransitionError, match="rep_1 is stopping and cannot be ready"):
            replica.mark_ready()

    async def test_it_stops_once(self, replica: ReplicaHandle, wire: Wire) -> None:
        replica.mark_ready()
        replica.shut_down(5)
        with pytest.raises(TransitionError, match="rep_1 is stopping and cannot be stopping"):
            replica.shut_down_when_done(9)
        assert replica.stop_deadline == 1005
        assert wire.sent == [SHUTDOWN]

    async def test_nothing_follows_its_end(self, replica: ReplicaHandle) -> None:
        replica.mark_ended("signal 9")
        with pytest.raises(TransitionError, match="rep_1 is ended and cannot be ready"):
            replica.mark_ready()
        with pytest.raises(TransitionError, match="rep_1 is ended and cannot be stopping"):
            replica.shut_down(5)
        with pytest.raises(TransitionError, match="rep_1 has ended already"):
            replica.mark_ended("signal 9")


class TestLoading:
    async def test_it_is_loaded(self, replica: ReplicaHandle, wire: Wire) -> None:
        wire.receive(Loaded(1.0, convertible=True))
        await replica.wait_loaded()
        assert replica.conversion.is_possible
        assert replica.progress == 1

    async def test_it_cannot_be_loaded(self, replica: ReplicaHandle, wire: Wire) -> None:
        wire.receive(LoadFailed("no such file.", lasting=True))
        with pytest.raises(LoadError, match="no such file") as caught:
            await replica.wait_loaded()
        assert caught.value.lasting

    async def test_it_ended_right_after_it(self, replica: ReplicaHandle, wire: Wire) -> None:
        """The process may end before the task that waits for the load runs again."""
        wire.receive(Loaded(1.0, convertible=False))
        replica.mark_ended("signal 9")
        with pytest.raises(LoadError, match=r"ended while loading \(signal 9\)"):
            await replica.wait_loaded()

    async def test_the_reason_of_a_kill(self, replica: ReplicaHandle) -> None:
        assert replica.kill_cause == KillCause()
        replica.record_kill(Reason.MEMORY_EXCEEDED, "it used 9 GiB")
        replica.record_kill(Reason.LOAD_TIMEOUT)
        assert replica.kill_cause == KillCause(Reason.LOAD_TIMEOUT, "it used 9 GiB")
        replica.mark_ended("signal 9")
        with pytest.raises(LoadError, match=r"ended while loading \(it used 9 GiB\)") as caught:
            await replica.wait_loaded()
        assert caught.value.reason is Reason.LOAD_TIMEOUT


class TestConversions:
    async def test_is_offered_once(self, replica: ReplicaHandle, wire: Wire) -> None:
        wire.receive(Loaded(1.0, convertible=True))
        replica.adopt(EXECUTION)
        assert replica.conversion.execution is EXECUTION
        assert not replica.conversion.is_possible

    async def test_is_forbidden(self, replica: ReplicaHandle, wire: Wire) -> None:
        wire.receive(Loaded(1.0, convertible=True))
        replica.conversion.forbid()
        assert not replica.conversion.is_possible


class TestMoves:
    async def test_an_answer(self, replica: ReplicaHandle, wire: Wire) -> None:
        moving = asyncio.create_task(replica.move(Sleep(), 60))
        await settle()
        assert wire.sent == [pack(Sleep())]
        wire.receive(Moved(held_bytes=7))
        assert await moving == Moved(held_bytes=7)
        # An answer that nobody awaits is ignored.
        wire.receive(Moved(held_bytes=8))
        moving = asyncio.create_task(replica.move(Wake(), 60))
        await settle()
        wire.receive(Moved("no memory"))
        assert await moving == Moved("no memory")

    async def test_no_answer(self, replica: ReplicaHandle, wire: Wire) -> None:
        moved = await replica.move(Sleep(), 0.01)
        assert moved == Moved("the replica did not answer within 0.01 s")
        wire.receive(Moved())

    async def test_its_end(self, replica: ReplicaHandle, wire: Wire) -> None:
        moving = asyncio.create_task(replica.move(Sleep(), 60))
        await settle()
        replica.mark_ended("signal 9")
        assert await moving == Moved("its process has ended")
        assert await replica.move(Wake(), 60) == Moved("its process has ended")
        assert wire.sent == [pack(Sleep())]

    @pytest.mark.parametrize(("reported", "known"), [(None, None), (5, 5), (-5, 0)])
    async def test_the_memory_that_it_needs(
        self, replica: ReplicaHandle, wire: Wire, reported: int | None, known: int | None
    ) -> None:
        wire.receive(Loaded(1.0, convertible=False, sleep_bytes=reported))
        assert replica.sleep_bytes == known
