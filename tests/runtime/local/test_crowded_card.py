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
from stoker.runtime.local.memory.sizing import HEADROOM
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.observed import Status
from stoker.runtime.specification import Readiness
from tests.runtime.pool.world import CALL, SPEC
from tests.support import virtual_time
from tests.support.simulated_gpu import (
    CONTEXT,
    GIB,
    MAIN_BYTES,
    Gpu,
    Machine,
    no_budget_is_exceeded,
    runtime_on,
)

DEPLOYMENTS, PLACES, HOT, WARM = 40, 30, 4, 30
CARD = 80 * GIB
BUDGET = int(CARD * 0.9)
REPLICA = BUDGET // PLACES
"""Bytes of a replica on the card, with its context. The claim adds 5 % to a part of it."""
DEVICE_BYTES = int((REPLICA - CONTEXT - 20 * MIB) / 1.05)
CALLS = 300
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
                    memory_bytes=int(MAIN_BYTES * HEADROOM),
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


def check_served(crowd: Crowd) -> None:
    assert sum(map(len, crowd.waits.values())) == CALLS
    assert len(crowd.waits) == DEPLOYMENTS, "each was called and answered"
    assert crowd.longest < MOST_WAIT_S
    # Each start serves a call that found no replica, except for starts that fill free memory.
    assert crowd.starts <= crowd.missed + DEPLOYMENTS
    assert crowd.machine.gpu.most_used > BUDGET * 0.9, "the card is used"


def test_all_are_served_and_warm_ones_sleep(crowd: Callable[..., Crowd]) -> None:
    served = crowd()
    check_served(served)
    assert served.moved("sleep") > 20
    assert served.moved("sleep") - served.moved("wake") <= WARM
    hot = [f"dep_{number}" for number in range(HOT)]
    assert [served.machine.forks.count(name) for name in hot] == [1] * HOT, "they stay"
    assert max(max(served.waits[name]) for name in hot) < 1


def test_without_sleep_they_are_unloaded(crowd: Callable[..., Crowd]) -> None:
    served = crowd(gpu_sleep=False)
    check_served(served)
    assert served.machine.moves == []


def test_without_main_memory_they_are_unloaded(crowd: Callable[..., Crowd]) -> None:
    """Main memory has room for the processes and for two sleeping replicas."""
    processes = int(MAIN_BYTES * HEADROOM) * (PLACES + 4)
    served = crowd(memory_budget_mib=(processes + 2 * REPLICA) // MIB)
    check_served(served)
    assert served.moved("sleep") < served.starts / 2


def test_no_account_starves(crowd: Callable[..., Crowd]) -> None:
    served = crowd(accounts=3, a_second=8.0)
    check_served(served)
    of_accounts = [
        [
            wait
            for number in range(DEPLOYMENTS)
            if number % 3 == account
            for wait in served.waits[f"dep_{number}"]
        ]
        for account in range(3)
    ]
    means = [sum(waits) / len(waits) for waits in of_accounts]
    assert max(means) < 3 * min(means)


def test_calls_faster_than_models_load(crowd: Callable[..., Crowd]) -> None:
    served = crowd(a_second=40.0)
    check_served(served)
