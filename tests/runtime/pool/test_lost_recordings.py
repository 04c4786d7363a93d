"""A replica that ends while it records a pass: the gateway stores the pass and continues."""

from typing import Any

import pytest

from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.backoff import MAX_EARLY_ENDS
from stoker.runtime.pool.callbacks import ReplicaCallbacks
from stoker.runtime.pool.handle import ReplicaHandle
from tests.runtime.pool.world import World, settle

NAME = "input_ids 4x32"


@pytest.fixture
def lost(world: World) -> list[str]:
    """Names of the passes that were reported."""
    names: list[str] = []
    world.launcher.callbacks = ReplicaCallbacks(on_recording_lost=names.append)
    return names


async def recording(world: World, name: str = NAME) -> ReplicaHandle:
    """Returns a replica that has answered a call and records a pass."""
    call = world.call()
    replica = await world.loaded()
    world.answer(replica)
    await call
    flight: Any = replica.flight
    flight.recording = name
    return replica


@pytest.mark.parametrize("status", [-9, -6, 1])
async def test_the_pass_is_reported(world: World, lost: list[str], status: int) -> None:
    world.pool.exited(await recording(world), status)
    await settle()
    assert lost == [NAME]
    call = world.call()
    world.answer(await world.loaded())
    assert await call == b"[]"


async def test_a_replica_that_hangs_in_a_recording(world: World, lost: list[str]) -> None:
    replica = await recording(world)
    replica.record_kill(Reason.STALLED, "it was silent")
    world.pool.exited(replica, -9)
    assert lost == [NAME]


async def test_ends_with_other_causes_are_not_reported(world: World, lost: list[str]) -> None:
    world.pool.exited(await recording(world, ""), -9)
    replica = await recording(world)
    replica.record_kill(Reason.MEMORY_EXCEEDED)
    world.pool.exited(replica, -9)
    await settle()
    world.pool.apply(world.pool.spec, running=True)
    world.pool.exited(await recording(world), -9, out_of_memory=True)
    assert lost == []


async def test_lost_recordings_do_not_fail_the_deployment(world: World, lost: list[str]) -> None:
    for number in range(MAX_EARLY_ENDS + 1):
        world.pool.exited(await recording(world, f"{NAME} {number}"), 1)
        await settle()
    assert len(lost) == MAX_EARLY_ENDS + 1
    assert Status.FAILED not in [status for status, _ in world.recorder.changes]


async def test_calls_in_the_engine_are_sent_to_another_replica(
    world: World, lost: list[str]
) -> None:
    replica = await recording(world)
    call = world.call()
    await settle()
    flight: Any = replica.flight
    flight.running.update(replica.pending)
    world.pool.exited(replica, -9)
    world.answer(await world.loaded())
    assert await call == b"[]"
