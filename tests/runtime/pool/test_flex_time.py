"""When the memory of replicas costs the price of background work."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.base.fairness import Tier
from stoker.runtime.metering import MIB, Meter
from stoker.runtime.observed import Status
from stoker.runtime.pool.flex_time import QUIET_S
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec, Readiness
from tests.runtime.pool.test_tiers import call_of, end, flex
from tests.runtime.pool.world import Launcher, World, settle

COLD = Readiness.COLD
IDLE_S = 300.0


def world_of(**spec: Any) -> World:
    return World(**{"readiness": COLD, "idle_timeout_s": IDLE_S, **spec})


def prices(world: World) -> list[bool]:
    return [is_flex for _, _, is_flex in world.launcher.prices]


async def work(world: World) -> tuple[ReplicaHandle, "list[asyncio.Task[bytes]]"]:
    """Starts a background call and returns its replica."""
    calls = flex(world)
    return await world.loaded(), calls


class TestRule:
    async def test_background_work_only(self) -> None:
        """Loading and idle time cost the full price. Two calls at once change nothing more."""
        world = world_of()
        calls = flex(world)
        await settle()
        assert prices(world) == []
        replica = await world.loaded()
        assert prices(world) == [True]
        calls += flex(world)
        await settle()
        await world.answer_first(replica)
        assert prices(world) == [True]
        await end(world, replica, calls)
        assert prices(world) == [True, False]

    async def test_a_live_call_ends_it_when_it_arrives(self) -> None:
        world = world_of()
        replica, calls = await work(world)
        live = call_of(world, Tier.DEFAULT)
        await settle()
        assert prices(world) == [True, False]
        await end(world, replica, [*calls, live])

    @pytest.mark.parametrize(
        ("idle_timeout_s", "quiet_s"), [(IDLE_S, QUIET_S), (3 * QUIET_S, 3 * QUIET_S)]
    )
    async def test_a_live_call_counts_for_an_hour_or_the_idle_timeout(
        self, idle_timeout_s: float, quiet_s: float
    ) -> None:
        world = world_of(idle_timeout_s=idle_timeout_s)
        live = call_of(world, Tier.PRIORITY)
        replica = await world.loaded()
        await end(world, replica, [live])
        calls = flex(world)
        await settle()
        world.clock.now += quiet_s - 1
        replica.vitals.message_received()
        world.pool.tick()
        assert prices(world) == []
        world.clock.now += 1
        world.pool.tick()
        assert prices(world) == [True]
        await end(world, replica, calls)

    @pytest.mark.parametrize(
        "spec",
        [
            {"readiness": Readiness.WARM},
            {"readiness": Readiness.HOT},
            {"min_replicas": 1, "max_replicas": 1},
        ],
    )
    async def test_not_for_models_that_stay_loaded(self, spec: dict[str, Any]) -> None:
        world = world_of(**spec)
        replica, calls = await work(world)
        assert prices(world) == []
        await end(world, replica, calls)

    async def test_a_change_of_the_readiness_counts_at_once(self) -> None:
        world = world_of()
        replica, calls = await work(world)
        world.pool.apply(replace(world.pool.spec, readiness=Readiness.WARM), running=True)
        assert prices(world) == [True, False]
        await end(world, replica, calls)

    async def test_a_call_without_an_answer_ends_it(self) -> None:
        world = world_of()
        _, calls = await work(world)
        calls[0].cancel()
        await settle()
        assert prices(world) == [True, False]


class Metered(Launcher):
    """Launcher with replicas of 1 MiB that are metered."""

    def __init__(self, world: World) -> None:
        super().__init__(world.clock)
        self.meter = Meter(lambda: round(world.clock() * 1000), lambda: round(world.clock() * 1000))

    async def launch(self, spec: DeploymentSpec, generation: int, replica_id: str) -> ReplicaHandle:
        replica = await super().launch(spec, generation, replica_id)
        self.meter.begin(replica_id, account_id="a", deployment_id="d", model="m", memory_bytes=MIB)
        return replica

    def set_flex(self, replica_id: str, *, is_flex: bool) -> None:
        self.meter.set_flex(replica_id, is_flex=is_flex)

    def cost(self) -> int:
        """Returns the cost of all memory until now. Background work is free, which is the most
        that can be gained by it.
        """
        return sum(held.mib_ms for held in self.meter.take() if not held.is_flex)


ACTIONS = st.sampled_from(["call", "end", "wait", "wait"])
STEPS = st.lists(
    st.tuples(st.sampled_from([1, 60, 250, 400, 2000, 4000]), ACTIONS, ACTIONS), max_size=25
)


async def bill(steps: list[tuple[int, str, str]], idle_timeout_s: float, *, with_flex: bool) -> int:
    """Returns the cost of some calls. Replicas load at once, and end as soon as they are drained.

    Args:
        steps: seconds until the next step, an action of live calls, and one of background calls.
        with_flex: include the background calls.
    """
    world = world_of(idle_timeout_s=idle_timeout_s, max_replicas=2)
    launcher = Metered(world)
    world.use(launcher)
    calls: dict[Tier, asyncio.Task[bytes]] = {}

    async def act(tier: Tier, action: str) -> None:
        if action == "call" and tier not in calls:
            calls[tier] = call_of(world, tier, wait_s=1e9)
        elif action == "end" and tier in calls:
            calls.pop(tier).cancel()
        await settle()
        for replica in launcher.launched:
            if replica.status is Status.STARTING:
                await world.loaded()

    for seconds, live, background in [*steps, (1, "end", "end"), (10**6, "wait", "wait")]:
        if with_flex:
            await act(Tier.FLEX, background)
        await act(Tier.DEFAULT, live)
        world.clock.now += seconds
        for replica in launcher.launched:
            replica.vitals.message_received()
            replica.vitals.progressed()
        world.pool.tick()
        for replica in launcher.launched:
            if replica.status is Status.STOPPING and not replica.has_ended:
                world.pool.exited(replica, 0)
                launcher.meter.end(replica.id)
        await settle()
    assert all(replica.has_ended for replica in launcher.launched)
    return launcher.cost()


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([1.0, IDLE_S, 2 * QUIET_S]))
def test_background_calls_never_lower_the_costs(
    steps: list[tuple[int, str, str]], idle_timeout_s: float
) -> None:
    """Not even if background work were free."""
    without = asyncio.run(bill(steps, idle_timeout_s, with_flex=False))
    assert asyncio.run(bill(steps, idle_timeout_s, with_flex=True)) >= without


async def test_where_background_work_is_free_a_batch_costs_only_its_idle_time() -> None:
    alone = [(4000, "wait", "call"), (4000, "wait", "wait")]
    with_live = [(4000, "call", "call"), (4000, "wait", "wait")]
    idle_s = 1 + 10**6
    assert await bill(alone, IDLE_S, with_flex=True) == 1000 * idle_s
    assert await bill(with_live, IDLE_S, with_flex=True) == 1000 * (8000 + idle_s)
