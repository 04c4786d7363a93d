"""Tests of replicas that give up their GPU memory and wake for the next call."""

from dataclasses import replace
from typing import Any

from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import Readiness
from tests.runtime.pool.world import LIMITS, World, settle


async def asleep(world: World) -> ReplicaHandle:
    """Returns a replica that has answered a call and fell asleep."""
    call = world.call()
    replica = await world.loaded()
    world.answer(replica)
    await call
    world.pool.put_to_sleep(replica)
    await settle()
    assert replica.status is Status.ASLEEP
    return replica


def hear_from(replica: ReplicaHandle) -> None:
    """Receives a sign of life that shows no progress."""
    wire: Any = replica.channel
    wire.receive()


async def test_a_call_wakes_it():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    assert world.pool.stats().status is Status.IDLE
    call = world.call()
    await settle()
    assert world.launcher.moves == [("sleep", replica.id), ("claim", replica.id)]
    world.launcher.device.set()
    await settle()
    assert world.launcher.moves[2:] == [("wake", replica.id)]
    assert replica.status is Status.READY and len(world.launcher.launched) == 1
    world.answer(replica)
    assert await call == b"[]"


async def test_it_finishes_its_calls_first():
    world = World(readiness=Readiness.WARM)
    call = world.call()
    replica = await world.loaded()
    world.pool.put_to_sleep(replica)
    await settle()
    assert world.launcher.moves == [] and replica.status is Status.ASLEEP
    world.answer(replica)
    assert await call == b"[]"
    await settle()
    assert world.launcher.moves == [("sleep", replica.id)]


async def test_several_calls_wake_it_once():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    calls = [world.call() for _ in range(3)]
    world.launcher.device.set()
    await settle()
    assert world.launcher.moves.count(("wake", replica.id)) == 1
    world.answer(replica)
    for call in calls:
        await call
    assert len(world.launcher.launched) == 1


async def test_it_wakes_without_a_call_once_the_gpu_has_room():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.pool.tick()
    await settle()
    assert replica.status is Status.ASLEEP
    world.launcher.device.set()
    world.pool.tick()
    await settle()
    assert replica.status is Status.READY


async def test_a_failed_move_to_main_memory_ends_it():
    world = World(readiness=Readiness.WARM)
    world.launcher.failing.add("sleep")
    replica = await asleep(world)
    assert world.launcher.killed == [replica.id]
    assert "the driver is busy" in replica.kill_cause.details


async def test_a_failed_wake_starts_another_replica():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.launcher.failing.add("wake")
    world.launcher.device.set()
    call = world.call()
    await settle()
    assert world.launcher.killed == [replica.id]
    world.pool.exited(replica, -9)
    successor = await world.loaded()
    assert successor is not replica
    world.answer(successor)
    assert await call == b"[]"


async def test_silence_does_not_end_it():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.clock.now += 1000
    world.pool.tick()
    await settle()
    assert world.launcher.killed == []
    world.launcher.device.set()
    world.pool.tick()
    await settle()
    world.pool.tick()
    assert replica.status is Status.READY and world.launcher.killed == []


async def test_it_ends_with_its_deployment():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.pool.stop(Reason.STOPPED_BY_USER)
    assert world.launcher.killed == [replica.id]
    world.pool.exited(replica, -9)
    assert world.pool.stats().status is Status.STOPPED


async def test_it_ends_if_the_account_cannot_pay():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.launcher.funded = False
    world.pool.tick()
    assert world.launcher.killed == [replica.id]


async def test_it_ends_for_main_memory():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.pool.evict(replica)
    assert world.launcher.killed == [replica.id]


async def test_its_own_end_is_reported():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.pool.exited(replica, -9)
    assert world.recorder.changes[-1] == (Status.IDLE, Reason.WORKER_LOST)
    call = world.call()
    successor = await world.loaded()
    world.answer(successor)
    assert await call == b"[]"


async def test_a_changed_deployment_does_not_wake_the_old_one():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.pool.apply(replace(world.pool.spec, dtype="bfloat16"), running=True)
    successor = await world.loaded()
    assert successor is not replica
    assert world.launcher.killed == [replica.id]
    world.pool.exited(replica, -9)
    assert Reason.WORKER_LOST not in {reason for _, reason in world.recorder.changes}


async def test_a_changed_deployment_lets_the_old_one_finish_its_calls():
    world = World(readiness=Readiness.WARM)
    call = world.call()
    replica = await world.loaded()
    world.pool.put_to_sleep(replica)
    world.pool.apply(replace(world.pool.spec, dtype="bfloat16"), running=True)
    other = world.call()
    successor = await world.loaded()
    assert successor is not replica and world.launcher.killed == []
    world.answer(replica)
    assert await call == b"[]"
    await settle()
    assert world.launcher.killed == [replica.id] and world.launcher.moves == []
    world.answer(successor)
    assert await other == b"[]"


async def test_its_end_during_the_move():
    world = World(readiness=Readiness.WARM)
    world.launcher.moved.clear()
    replica = await asleep(world)
    call = world.call()
    await settle()
    world.pool.exited(replica, -9)
    world.launcher.ended.add(replica.id)
    world.launcher.moved.set()
    successor = await world.loaded()
    world.answer(successor)
    assert await call == b"[]"
    assert [name for name, _ in world.launcher.moves] == ["sleep"]


async def test_a_call_during_the_move_waits_for_its_end():
    world = World(readiness=Readiness.WARM)
    world.launcher.moved.clear()
    world.launcher.device.set()
    replica = await asleep(world)
    call = world.call()
    await settle()
    assert [name for name, _ in world.launcher.moves] == ["sleep"]
    world.launcher.moved.set()
    await settle()
    assert [name for name, _ in world.launcher.moves] == ["sleep", "claim", "wake"]
    world.answer(replica)
    assert await call == b"[]"


async def test_a_call_that_hangs_ends_it_before_the_move():
    world = World(readiness=Readiness.WARM)
    call = world.call()
    replica = await world.loaded()
    world.pool.put_to_sleep(replica)
    await settle()
    world.clock.now += LIMITS.stall_timeout_s - 1
    hear_from(replica)
    world.pool.tick()
    assert world.launcher.killed == [] and not call.done()
    world.clock.now += 2
    hear_from(replica)
    world.pool.tick()
    assert world.launcher.killed == [replica.id]
    assert "made no progress" in replica.kill_cause.details
    call.cancel()


async def test_an_unexpected_error_of_the_move_ends_it():
    world = World(readiness=Readiness.WARM)
    world.launcher.broken = True
    replica = await asleep(world)
    assert world.launcher.killed == [replica.id]


async def test_its_end_during_a_wake_starts_another_replica():
    world = World(readiness=Readiness.WARM)
    replica = await asleep(world)
    world.launcher.device.set()
    world.launcher.woken.clear()
    call = world.call()
    await settle()
    assert world.launcher.moves[-1] == ("wake", replica.id)
    world.pool.exited(replica, -9)
    # The driver does not notice the end.
    successor = await world.loaded()
    assert successor is not replica
    world.answer(successor)
    assert await call == b"[]"


async def test_its_end_during_a_move_that_hangs():
    world = World(readiness=Readiness.WARM)
    world.launcher.moved.clear()
    replica = await asleep(world)
    call = world.call()
    await settle()
    world.pool.exited(replica, -9)
    successor = await world.loaded()
    world.answer(successor)
    assert await call == b"[]"
