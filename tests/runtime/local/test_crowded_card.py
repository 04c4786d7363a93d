"""Forty deployments on a GPU with room for thirty, through the runtime's own queue: allocator,
pools and supervision are real, processes and the driver are simulated. Time is virtual.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.observed import Status
from stoker.runtime.specification import Readiness
from tests.runtime.pool.world import CALL, SPEC
from tests.support import virtual_time
from tests.support.simulated_gpu import (
    CONTEXT,
    GIB,
    Gpu,
    Machine,
    no_budget_is_exceeded,
    runtime_on,
)

DEPLOYMENTS, PLACES, HOT, WARM = 40, 30, 4, 20
CARD = 80 * GIB
BUDGET = int(CARD * 0.9)
REPLICA = BUDGET // PLACES
"""Bytes of a replica on the card, with its context. The claim adds 5 % to a part of it."""
DEVICE_BYTES = int((REPLICA - CONTEXT - 20 * MIB) / 1.05)
CALLS = 500
MOST_WAIT_S = 20.0
"""Longest acceptable wait. A call waits for a drain, a move to main memory, and a load."""


class Crowd:
    """Deployments of several accounts: some hot, some warm, the others cold."""

    def __init__(self, machine: Machine, runtime: LocalRuntime, *, accounts: int) -> None:
        self.machine = machine
        self.runtime = runtime
        self.waits: dict[str, list[float]] = {}
        """Maps each deployment to the seconds of its calls."""
        self.missed = 0
        """Calls that found no ready replica."""
        for number in range(DEPLOYMENTS):
            readiness = Readiness.COLD
            if number < HOT + WARM:
                readiness = Readiness.HOT if number < HOT else Readiness.WARM
            runtime.apply(
                replace(
                    SPEC,
                    id=f"dep_{number}",
                    source=f"upl_{number}",
                    account_id=f"acct_{number % accounts}",
                    device="cuda",
                    readiness=readiness,
                    # The first claim is this and the context.
                    memory_bytes=DEVICE_BYTES,
                ),
                running=True,
            )

    async def call(self, spec_id: str) -> None:
        stats = self.runtime.stats(spec_id)
        assert stats
        self.missed += all(replica.status is not Status.READY for replica in stats.replicas)
        begun = _now()
        answer = await self.runtime.call(spec_id, CALL, wait_s=60, timeout_s=60)
        assert answer.decode() == spec_id
        self.waits.setdefault(spec_id, []).append(_now() - begun)

    async def watch(self) -> None:
        """Fails if a budget is exceeded at any time."""
        while True:
            exceeded = [*no_budget_is_exceeded(self.runtime)]
            assert not exceeded, exceeded
            await asyncio.sleep(0.05)

    async def serve(self, seed: int, *, a_second: float) -> None:
        """Sends calls in random order, and waits for all answers."""
        chance = random.Random(seed)
        watch = asyncio.create_task(self.watch())
        async with asyncio.TaskGroup() as calls:
            for _ in range(CALLS):
                calls.create_task(self.call(f"dep_{chance.randrange(DEPLOYMENTS)}"))
                await asyncio.sleep(chance.expovariate(a_second))
                if watch.done():
                    watch.result()
        watch.cancel()

    @property
    def longest(self) -> float:
        return max(max(waits) for waits in self.waits.values())

    @property
    def starts(self) -> int:
        """Number of loads and of wakes."""
        return len(self.machine.forks) + self.moved("wake")

    def moved(self, name: str) -> int:
        return sum(move == name for move, _ in self.machine.moves)


def _now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Crowd]:
    """Returns a function that serves the calls on a card, in virtual time."""

    def served(
        *, accounts: int = 1, a_second: float = 4.0, seed: int = 7, **settings: Any
    ) -> Crowd:
        async def work() -> Crowd:
            machine = Machine(Gpu(CARD), DEVICE_BYTES)
            async with runtime_on(machine, tmp_path, monkeypatch, **settings) as runtime:
                crowd = Crowd(machine, runtime, accounts=accounts)
                # The kept ones load.
                await asyncio.sleep(20)
                await crowd.serve(seed, a_second=a_second)
                await asyncio.sleep(20)
                check_order(crowd)
            assert not machine.running and not machine.gpu.held
            return crowd

        return virtual_time.run(work())

    return served


def check_order(crowd: Crowd) -> None:
    """Checks that nothing waits, and that each claim belongs to a process."""
    memory, residents = crowd.runtime._memory, crowd.runtime._residents
    assert memory.waiting() == []
    assert set(memory.main.sizes()) == set(residents)
    assert set(memory.devices[0].sizes()) == {
        replica_id
        for replica_id, resident in residents.items()
        if resident.replica.status is not Status.ASLEEP
    }
    for replica_id, resident in residents.items():
        is_asleep = resident.replica.status is Status.ASLEEP
        assert bool(memory.asleep_bytes(replica_id)) == is_asleep


def test_all_are_served_and_warm_ones_sleep(crowd: Callable[..., Crowd]) -> None:
    served = crowd()
    print(
        served.longest,
        served.missed,
        served.starts,
        served.machine.moves[:3],
        served.moved("sleep"),
        served.moved("wake"),
        len(served.machine.forks),
        served.machine.gpu.most_used / GIB,
    )
