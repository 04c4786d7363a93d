"""Tests of replicas on vLLM that give way on a GPU. The test simulates their processes."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB
from stoker.runtime.local.memory.device_sizing import CONTEXT_BYTES, SLEEPERS_SHARE
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.observed import Status
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.wire.protocol import Loaded, pack
from stoker.wire.sleep import Moved, Sleep, Wake
from tests.runtime.local.test_device_sizing import GIB, VLLM, World
from tests.runtime.pool.world import Wire, settle

WARM = replace(VLLM, readiness=Readiness.WARM, device="cuda:1")
OTHER = replace(WARM, id="dep_2")
SHARE = 0.9 * (1 - SLEEPERS_SHARE)
CLAIM = int(40 * GIB * SHARE)
WEIGHTS = 8 * GIB


class SleepingWorld(World):
    """A runtime with a device of 40 GiB that holds one replica on vLLM."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        runtime: Any = self.runtime
        runtime._host.pid = lambda _replica_id: 1
        runtime._host.kill = self.killed.append

    @property
    def killed(self) -> list[str]:
        return self.__dict__.setdefault("_killed", [])

    async def launch_warm(
        self, spec: DeploymentSpec, sleep_bytes: int | None = WEIGHTS
    ) -> Resident:
        resident = await self.launch(spec)
        wire_of(resident).receive(Loaded(1.0, convertible=False, sleep_bytes=sleep_bytes))
        resident.pool._state.replicas[resident.replica.id] = resident.replica
        return resident

    def claims(self, spec: DeploymentSpec) -> "asyncio.Task[str | None]":
        self.runtime.apply(spec, running=False)
        spec = self.runtime._pools.find(spec.id).spec
        return asyncio.create_task(self.runtime._launcher.claim(spec, is_needed=True))


def wire_of(resident: Resident) -> Wire:
    wire: Any = resident.replica.channel
    return wire


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SleepingWorld]:
    world = SleepingWorld(tmp_path)
    yield world
    world.close()


async def asleep(world: SleepingWorld, held_bytes: int = 300 * MIB) -> Resident:
    """Returns a replica that fell asleep for another one, which got its claim."""
    resident = await world.launch_warm(WARM)
    assert world.held == [0, CLAIM]
    main = world.runtime._memory.main
    before = main.held
    claim = world.claims(OTHER)
    await settle()
    assert resident.replica.status is Status.ASLEEP
    assert wire_of(resident).sent == [pack(Sleep())]
    assert main.held == before + WEIGHTS, "counted before the move"
    assert not claim.done()
    wire_of(resident).receive(Moved(held_bytes=held_bytes))
    await settle()
    assert await claim
    return resident


async def test_it_sleeps_by_itself(world: SleepingWorld):
    await asleep(world)
    assert world.held == [0, CLAIM + 300 * MIB + CONTEXT_BYTES]
    assert world.killed == []


async def test_it_wakes(world: SleepingWorld):
    resident = await asleep(world)
    launcher = world.runtime._launcher
    (other,) = world.runtime._memory.devices[1].sizes().keys() - {resident.replica.id}
    waking = asyncio.create_task(
        launcher.claim_device(resident.pool.spec, resident.replica.id, is_needed=True)
    )
    await settle()
    world.runtime._memory.release(other)
    assert await waking
    assert world.held == [0, CLAIM]
    moving = asyncio.create_task(launcher.wake(resident.replica.id))
    await settle()
    assert wire_of(resident).sent[1:] == [pack(Wake())]
    wire_of(resident).receive(Moved())
    await moving
    resident.replica.mark_ready()
    assert world.runtime._memory.asleep_bytes(resident.replica.id) == 0


@pytest.mark.parametrize("error", ["CUDA Error: out of memory", "x" * 10_000])
async def test_a_failed_move_ends_it(world: SleepingWorld, error: str):
    resident = await world.launch_warm(WARM)
    world.claims(OTHER)
    await settle()
    wire_of(resident).receive(Moved(error))
    await settle()
    assert world.killed == [resident.replica.id]
    assert error[:20] in resident.replica.kill_cause.details
    assert len(resident.replica.kill_cause.details) < 2000


@pytest.mark.parametrize(
    ("spec", "is_warm"),
    [
        (WARM, True),
        (replace(WARM, engine="auto"), True),
        (replace(WARM, readiness=Readiness.COLD, min_replicas=1), True),
        (replace(WARM, readiness=Readiness.COLD), False),
        (replace(WARM, readiness=Readiness.HOT, min_replicas=1), False),
    ],
)
async def test_only_warm_ones_prepare_for_it(
    world: SleepingWorld, spec: DeploymentSpec, is_warm: bool
):
    await world.launch(spec)
    assert world.told[-1].sleeps is is_warm
    environment = world.told[-1].environment
    assert environment and environment.gpu_share == pytest.approx(SHARE if is_warm else 0.9)


async def test_one_that_cannot_sleep_is_unloaded(world: SleepingWorld):
    resident = await world.launch_warm(WARM, sleep_bytes=None)
    world.claims(OTHER)
    await settle()
    assert resident.replica.status is Status.STOPPING


async def test_it_is_unloaded_if_main_memory_has_no_room(world: SleepingWorld):
    resident = await world.launch_warm(WARM, sleep_bytes=100 * GIB)
    world.claims(OTHER)
    await settle()
    assert resident.replica.status is Status.STOPPING
