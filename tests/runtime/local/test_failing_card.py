"""A GPU that disappears and a driver that hangs, while replicas compute, sleep and load.

The runtime is real; processes and the driver are simulated. Time is virtual.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.errors import CapacityError, ModelLoadingError
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.observed import ReplicaStats, Status
from stoker.runtime.specification import Readiness
from tests.runtime.pool.world import CALL, SPEC
from tests.support import virtual_time
from tests.support.simulated_gpu import GIB, HANG_S, Durations, Gpu, Machine, Process, runtime_on

READINGS_S = 25.0
"""Long enough for two readings of the driver."""


class Scene:
    """Deployments on a card."""

    def __init__(self, machine: Machine, runtime: LocalRuntime) -> None:
        self.machine = machine
        self.runtime = runtime

    def apply(self, name: str, readiness: Readiness = Readiness.COLD) -> None:
        spec = replace(SPEC, id=name, source=name, device="cuda", readiness=readiness)
        self.runtime.apply(replace(spec, memory_bytes=GIB), running=True)

    async def call(self, name: str, wait_s: float = 60) -> None:
        answer = await self.runtime.call(name, CALL, wait_s=wait_s, timeout_s=300)
        assert answer.decode() == name

    def begin(self, name: str, wait_s: float = 60) -> "asyncio.Task[None]":
        return asyncio.create_task(self.call(name, wait_s))

    def replicas(self, name: str) -> list[ReplicaStats]:
        stats = self.runtime.stats(name)
        return [*stats.replicas] if stats else []

    def process(self, name: str) -> Process:
        (process,) = (each for each in self.machine.running.values() if each.deployment == name)
        return process

    @property
    def claims(self) -> list[str]:
        return [*self.runtime._memory.devices[0].sizes()]


Work = Callable[[Scene], Awaitable[None]]


@pytest.fixture
def on_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that runs a scene on a card of a size, in virtual time."""

    def run(
        work: Work, *, size: int = 80 * GIB, durations: Durations | None = None, **settings: Any
    ) -> None:
        async def scene() -> None:
            machine = Machine(Gpu(size), GIB, durations)
            async with runtime_on(machine, tmp_path, monkeypatch, **settings) as runtime:
                await work(Scene(machine, runtime))

        virtual_time.run(scene())

    return run


class TestDeviceDisappears:
    def test_while_replicas_compute_and_rest(self, on_card: Callable[..., None]) -> None:
        async def work(scene: Scene) -> None:
            for name in ("crashes", "hangs", "rests"):
                scene.apply(name)
                await scene.call(name)
            scene.machine.gpu.is_present = False
            hanging = scene.begin("hangs")
            await asyncio.sleep(0)
            scene.process("hangs").is_stuck = True
            crashed = scene.begin("crashes")
            await asyncio.sleep(0)
            scene.machine.ends(scene.process("crashes"), -6)
            for call in (hanging, crashed):
                # Each is tried again, on a replica that cannot load.
                with pytest.raises((CapacityError, ModelLoadingError)):
                    await call
            await asyncio.sleep(READINGS_S)
            assert scene.claims == [] and not scene.machine.running
            for name in ("crashes", "hangs", "rests"):
                with pytest.raises(CapacityError, match="GPU"):
                    await scene.call(name)
            scene.machine.gpu.is_present = True
            await asyncio.sleep(READINGS_S)
            for name in ("crashes", "hangs", "rests"):
                await scene.call(name)
            assert len(scene.claims) == 3

        on_card(work, durations=Durations(answer=1), heartbeat_timeout_s=5)

    def test_while_a_replica_sleeps(self, on_card: Callable[..., None]) -> None:
        async def work(scene: Scene) -> None:
            await two_in_turn(scene)
            sleeper = scene.process("first").pid
            scene.machine.gpu.is_present = False
            await asyncio.sleep(READINGS_S)
            with pytest.raises(CapacityError, match="GPU"):
                await scene.call("first")
            scene.machine.gpu.is_present = True
            await asyncio.sleep(READINGS_S)
            await scene.call("first")
            assert scene.process("first").pid != sleeper

        on_card(work, size=3 * GIB)

    def test_while_a_replica_loads(self, on_card: Callable[..., None]) -> None:
        async def work(scene: Scene) -> None:
            scene.apply("loads")
            call = scene.begin("loads")
            await asyncio.sleep(1)
            scene.machine.gpu.is_present = False
            scene.machine.ends(scene.process("loads"), -6)
            with pytest.raises(ModelLoadingError):
                await call
            assert scene.claims == []
            await asyncio.sleep(READINGS_S)
            with pytest.raises(CapacityError, match="GPU"):
                await scene.call("loads")
            scene.machine.gpu.is_present = True
            await asyncio.sleep(READINGS_S)
            await scene.call("loads")

        on_card(work)

    def test_a_call_that_waits_for_it_is_refused(self, on_card: Callable[..., None]) -> None:
        async def work(scene: Scene) -> None:
            scene.apply("first")
            await scene.call("first")
            scene.apply("second")
            busy = scene.begin("first")
            await asyncio.sleep(0)
            waits = scene.begin("second", wait_s=200)
            await asyncio.sleep(1)
            assert not waits.done()
            scene.machine.gpu.is_present = False
            with pytest.raises(CapacityError, match="GPU"):
                await asyncio.wait_for(waits, READINGS_S)
            await busy

        on_card(work, size=3 * GIB, durations=Durations(answer=60))


class TestDriverHangs:
    def test_in_its_program(self, on_card: Callable[..., None]) -> None:
        """Replicas continue, and budgets do not change."""

        async def work(scene: Scene) -> None:
            await two_in_turn(scene)
            scene.machine.gpu.problem = "the driver hangs."
            await asyncio.sleep(READINGS_S)
            assert scene.runtime.machine().device_problem == "the driver hangs."
            await scene.call("first")
            await scene.call("second")

        on_card(work, size=3 * GIB)

    def test_in_a_checkpoint(self, on_card: Callable[..., None]) -> None:
        """The replica is ended at the timeout, and the waiting call is answered."""

        async def work(scene: Scene) -> None:
            scene.apply("first", Readiness.WARM)
            await scene.call("first")
            scene.machine.driver_hangs = True
            scene.apply("second", Readiness.WARM)
            begun = asyncio.get_running_loop().time()
            await scene.call("second", wait_s=200)
            assert HANG_S < asyncio.get_running_loop().time() - begun < HANG_S + 20
            assert scene.replicas("first") == []
            assert len(scene.claims) == 1

        on_card(work, size=3 * GIB)

    def test_in_a_wake(self, on_card: Callable[..., None]) -> None:
        async def work(scene: Scene) -> None:
            await two_in_turn(scene)
            sleeper = scene.process("first").pid
            scene.runtime._sleeps = False
            scene.machine.ends(scene.process("second"), 0)
            scene.machine.driver_hangs = True
            await scene.call("first", wait_s=200)
            assert scene.process("first").pid != sleeper

        on_card(work, size=3 * GIB)

    def test_when_cuda_starts(self, on_card: Callable[..., None]) -> None:
        """A process that cannot be killed keeps its claim. Others are not blocked."""

        async def work(scene: Scene) -> None:
            scene.apply("hangs")
            scene.machine.cannot_be_killed = True
            with pytest.raises(ModelLoadingError, match="not loaded in 20 s"):
                await scene.call("hangs")
            (claim,) = scene.claims
            scene.machine.durations = Durations()
            scene.apply("works")
            await scene.call("works")
            assert len(scene.claims) == 2 and claim in scene.claims
            # The runtime stops although the process does not end.

        on_card(work, durations=Durations(load=1e6), load_timeout_s=20)


async def two_in_turn(scene: Scene) -> None:
    """Serves two warm deployments on a card with room for one: the first sleeps afterwards."""
    for name in ("first", "second"):
        scene.apply(name, Readiness.WARM)
        await scene.call(name)
    await asyncio.sleep(5)
    (first,) = scene.replicas("first")
    assert first.status is Status.ASLEEP
