"""Memory estimates of a deployment that are learned from its replicas."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB, Settings
from stoker.inspection.inspector import _memory_bytes
from stoker.registry.deployments import estimates
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.local.memory.sizing import HEADROOM
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec
from tests.runtime.pool.world import SPEC, Flight, Wire, answer_unknown


class Recorder(RuntimeListener):
    def __init__(self) -> None:
        self.measurements: list[DeploymentSpec] = []

    def measured(self, spec: DeploymentSpec) -> None:
        self.measurements.append(spec)


class World:
    """A runtime with one replica, which has answered and is not a process."""

    def __init__(self, folder: Path) -> None:
        self.runtime = LocalRuntime(Settings(data_dir=folder, memory_budget_mib=1024), Any)
        self.recorder = Recorder()
        self.runtime._listeners.add(self.recorder)
        self.spec = replace(SPEC, memory_bytes=300 * MIB)
        self.runtime.apply(self.spec, running=False)
        channel: Any = Wire()
        self.replica = ReplicaHandle(
            replica_id="rep_1", flight=Flight(), generation=0, channel=channel
        )
        self.replica.mark_ready()
        answer_unknown(self.replica)
        self.runtime._memory.take("rep_1", Need(SPEC.id, 300 * MIB))
        pool = self.runtime._pools.find(SPEC.id)
        self.resident = Resident(self.replica, pool, self.spec, folder, folder)
        self.runtime._residents["rep_1"] = self.resident

    def measure(self, own_mib: int) -> None:
        self.replica.vitals.own_bytes = own_mib * MIB
        self.runtime._sizing.measure(self.resident)

    @property
    def needed(self) -> int:
        stats = self.runtime.stats(SPEC.id)
        assert stats
        return stats.memory_bytes


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_it_needed_most_is_what_the_next_one_claims(world: World) -> None:
    world.measure(200)
    world.measure(100)
    most = int(200 * MIB * HEADROOM)
    assert world.needed == world.runtime._memory.main.held == most
    assert [spec.memory_bytes for spec in world.recorder.measurements] == [most]


async def test_one_that_is_to_be_replaced_tells_nothing_of_the_next(world: World) -> None:
    world.measure(200)
    changed = replace(world.spec, dtype="bfloat16", memory_bytes=250 * MIB)
    world.runtime.apply(changed, running=False)
    assert world.needed == 250 * MIB, "the estimate, not what was measured in another dtype"
    world.recorder.measurements.clear()
    world.measure(400)
    assert world.needed == 250 * MIB
    assert not world.recorder.measurements
    assert world.runtime._memory.main.held == int(400 * MIB * HEADROOM), (
        "it claims what it holds itself"
    )
    world.runtime.apply(replace(world.spec, memory_bytes=300 * MIB), running=False)
    world.measure(200)
    assert world.needed == int(200 * MIB * HEADROOM), "once more as this one runs"


async def test_no_kill_makes_a_model_need_more_than_there_is(world: World) -> None:
    """An estimate above the machine's memory would prevent all further loads, although another
    replica may have caused the kill.
    """
    world.measure(900)
    for _ in range(3):
        world.runtime._sizing.raise_estimate(world.resident)
    assert world.needed == 1024 * MIB
    world.measure(1000)
    known = world.needed
    world.runtime._sizing.raise_estimate(world.resident)
    assert world.needed == known == int(1000 * MIB * HEADROOM)


class TestKinds:
    """Models with an estimate of 300 MiB, of which 172 MiB are weights."""

    WEIGHTS = 172 * MIB

    @pytest.fixture
    def unmeasured(self, world: World) -> DeploymentSpec:
        world.resident.spec = replace(world.spec, weight_bytes=self.WEIGHTS)
        weights = 100 * MIB
        return replace(world.spec, id="dep_2", memory_bytes=228 * MIB, weight_bytes=weights)

    def claimed(self, world: World, spec: DeploymentSpec) -> int:
        return world.runtime._sizing.need(spec).size

    async def test_the_next_model_claims_its_weights_and_what_the_first_needed(
        self, world: World, unmeasured: DeploymentSpec
    ) -> None:
        assert self.claimed(world, unmeasured) == 228 * MIB
        world.measure(220)
        world.measure(210)
        beside = int(220 * MIB * HEADROOM) - self.WEIGHTS
        assert self.claimed(world, unmeasured) == 100 * MIB + beside

    async def test_more_than_the_estimate_is_claimed_if_the_first_needed_more(
        self, world: World, unmeasured: DeploymentSpec
    ) -> None:
        world.measure(400)
        assert self.claimed(world, unmeasured) > 228 * MIB

    async def test_a_model_never_claims_less_than_its_weights(
        self, world: World, unmeasured: DeploymentSpec
    ) -> None:
        world.measure(50)
        assert self.claimed(world, unmeasured) > 100 * MIB

    @pytest.mark.parametrize(
        "change",
        [
            {"engine": "openvino"},
            {"dtype": "bfloat16"},
            {"device": "cuda"},
            {"pipeline": "text-generation"},
            {"config": {"speculation": "off"}},
            {"has_adapters": True},
            {"weight_bytes": 0},
        ],
        ids=str,
    )
    async def test_other_models_claim_their_estimates(
        self, world: World, unmeasured: DeploymentSpec, change: dict[str, Any]
    ) -> None:
        world.measure(220)
        assert self.claimed(world, replace(unmeasured, **change)) == 228 * MIB

    async def test_a_measured_model_claims_what_it_needed(
        self, world: World, unmeasured: DeploymentSpec
    ) -> None:
        known = replace(world.spec, weight_bytes=self.WEIGHTS)
        world.runtime.apply(known, running=False)
        world.measure(220)
        spec = world.runtime._pools.find(SPEC.id).spec
        assert self.claimed(world, spec) == spec.memory_bytes == int(220 * MIB * HEADROOM)


def test_the_weights_in_an_estimate_are_those_of_the_inspection() -> None:
    """Large models have other estimates, of which a share is for passes."""
    for weights in (0, 40 * MIB, 640 * MIB):
        assert estimates.weight_bytes(_memory_bytes(weights)) == weights
    assert estimates.weight_bytes(_memory_bytes(641 * MIB)) == 0
    assert estimates.weight_bytes(0) == 0
