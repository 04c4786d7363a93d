"""Tests of the devices that replicas receive and claim, and of the estimates for later replicas."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB, Settings
from stoker.base.errors import CapacityError
from stoker.models.engines import catalogue
from stoker.runtime.interface import LoadError
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.device_sizing import CONTEXT_BYTES, HEADROOM
from stoker.runtime.local.memory.device_watch import DriverReading
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.pool.callbacks import ReplicaCallbacks
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.wire.protocol import LoadFailed, ReplicaSpec
from tests.runtime.pool.world import SPEC, Flight, Wire, answer_unknown, settle
from tests.support.graphics import Table, device

GIB = 1024 * MIB
SMALL, LARGE = "GPU-00000000", "GPU-00000001"
ESTIMATE = GIB + CONTEXT_BYTES
MODEL = replace(SPEC, memory_bytes=GIB)
VLLM = replace(MODEL, pipeline="text-generation", engine="vllm")


class World:
    """A runtime with devices of 10 and 40 GiB. Its replicas are not processes."""

    def __init__(
        self, folder: Path, *, vllm_gpu_share: float = 0.9, gpu_memory_share: float = 0.9
    ) -> None:
        self.table = Table([device(0, 10 * GIB), device(1, 40 * GIB)])
        settings = Settings(
            data_dir=folder / "data",
            memory_budget_mib=100 * 1024,
            gpu_memory_share=gpu_memory_share,
            vllm_gpu_share=vllm_gpu_share,
            vllm_python=Path(sys.executable),
        )
        self.model = folder / "model"
        self.model.mkdir(exist_ok=True)
        folders: Any = self
        self.runtime = LocalRuntime(settings, folders, devices=self.table)
        self.told: list[ReplicaSpec] = []
        host: Any = self.runtime._host
        host.start, host.fork = lambda: None, self.told.append
        processes: Any = self.runtime._processes
        processes.connect = self.connect
        self.runtime._cells.open()

    async def folder(self, spec: DeploymentSpec, *, is_ahead: bool = False) -> Path:
        return self.model

    async def content(self, spec: DeploymentSpec) -> str:
        return ""

    async def connect(
        self, replica_id: str, generation: int, callbacks: ReplicaCallbacks
    ) -> ReplicaHandle:
        channel: Any = Wire()
        return ReplicaHandle(
            replica_id=replica_id,
            flight=Flight(),
            generation=generation,
            channel=channel,
            callbacks=callbacks,
        )

    async def launch(self, spec: DeploymentSpec, *, answers: int = 1) -> Resident:
        """Launches a replica of the deployment, and makes it ready and answer calls."""
        self.runtime.apply(spec, running=False)
        launcher = self.runtime._launcher
        replica_id = await launcher.claim(self.runtime._pools.find(spec.id).spec, is_needed=True)
        assert replica_id
        replica = await launcher.launch(spec, 0, replica_id)
        replica.mark_ready()
        answer_unknown(replica, answers)
        return self.runtime._residents[replica_id]

    async def told_of(self, spec: DeploymentSpec) -> tuple[str, str | None]:
        await self.launch(spec)
        return self.told[-1].device, self.told[-1].visible_devices

    def measure(self, resident: Resident, device_bytes: int | None) -> None:
        resident.replica.vitals.device_bytes = device_bytes
        self.runtime._sizing.measure(resident)

    def look(self) -> None:
        """Reads the devices, as the runtime does every few seconds."""
        if self.runtime._device_watch.apply(
            DriverReading(self.table.table(), self.table.processes())
        ):
            self.runtime._reserve_again()

    def size(self, spec: DeploymentSpec) -> int:
        """Returns the bytes that the next replica claims of a device."""
        claim = self.runtime._launcher._device_sizing.wanted(spec)
        assert claim
        return claim.size

    @property
    def held(self) -> list[int]:
        return [gpu.held_bytes for gpu in self.runtime.machine().devices]

    def close(self) -> None:
        self.runtime._processes.close()
        self.runtime._cells.close()


@pytest.fixture
async def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


class TestTold:
    async def test_any_is_the_one_with_most_room(self, world: World):
        assert await world.told_of(MODEL) == ("auto", LARGE)
        assert await world.told_of(replace(MODEL, device="cuda")) == ("cuda", LARGE)
        assert world.held == [0, 2 * ESTIMATE]

    async def test_the_one_that_is_named(self, world: World):
        """The replica sees no other device, so its device is the first one."""
        assert await world.told_of(replace(MODEL, device="cuda:0")) == ("cuda", SMALL)

    @pytest.mark.parametrize(
        "spec",
        [
            replace(MODEL, device="cpu"),
            replace(MODEL, engine="openvino"),
            replace(MODEL, dtype="int8"),
        ],
    )
    async def test_what_runs_on_the_cpu_sees_none(self, world: World, spec: DeploymentSpec):
        assert await world.told_of(spec) == ("cpu", "")
        assert world.held == [0, 0]

    async def test_what_fits_no_device(self, world: World):
        large = replace(MODEL, memory_bytes=40 * GIB)
        assert await world.told_of(large) == ("cpu", "")
        with pytest.raises(CapacityError, match="of the memory of GPU 1 and cannot fit"):
            await world.launch(replace(large, device="cuda"))

    async def test_where_there_are_none(self, tmp_path: Path):
        none: Any = None
        runtime = LocalRuntime(Settings(data_dir=tmp_path), none, devices=Table([]))
        for requested in ("auto", "cuda", "cuda:3"):
            spec = replace(MODEL, device=requested)
            launcher = runtime._launcher
            assert launcher._device_sizing.wanted(spec) is None
            assert launcher._starter.device(spec, "rep_1") == (requested, None), "as ever"
        assert runtime.machine().devices == []

    async def test_an_engine_that_is_spread_sees_several(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ):
        record = replace(catalogue.ENGINES["torch"], devices_option="spread_over")
        monkeypatch.setitem(catalogue.ENGINES, "torch", record)
        spec = replace(MODEL, engine="torch", config={"spread_over": 2})
        assert await world.told_of(spec) == ("auto", f"{SMALL},{LARGE}")
        assert world.held == [ESTIMATE, ESTIMATE]


class TestShare:
    """vLLM allocates a share of the device when it starts. The same share is claimed and passed to
    it.
    """

    async def test_is_what_was_claimed(self, tmp_path: Path):
        world = World(tmp_path, vllm_gpu_share=0.4)
        await world.launch(VLLM)
        await world.launch(VLLM)
        assert world.held == [0, 2 * 16 * GIB], "two on one device"
        environment = world.told[-1].environment
        assert environment and environment.gpu_share == pytest.approx(0.4)
        world.close()

    async def test_is_no_more_than_all_may_take(self, tmp_path: Path):
        world = World(tmp_path, gpu_memory_share=0.5)
        await world.launch(replace(VLLM, device="cuda:0"))
        assert world.held == [5 * GIB, 0]
        environment = world.told[-1].environment
        assert environment and environment.gpu_share == pytest.approx(0.5)
        world.close()

    async def test_is_not_what_is_measured(self, world: World):
        resident = await world.launch(VLLM)
        before = world.held
        world.measure(resident, None)
        assert world.held == before == [0, int(40 * GIB * 0.9)]


class TestMeasured:
    async def test_is_what_it_and_the_next_one_claim(self, world: World, tmp_path: Path):
        resident = await world.launch(MODEL)
        assert world.held == [0, ESTIMATE]
        world.measure(resident, 3 * GIB)
        most = int(3 * GIB * HEADROOM) + CONTEXT_BYTES
        world.measure(resident, 2 * GIB)
        assert world.held == [0, most]
        await world.launch(MODEL)
        assert world.held == [0, 2 * most]
        again = World(tmp_path)
        assert again.size(MODEL) == most, "after a restart, too"
        assert again.size(replace(MODEL, dtype="float16")) == ESTIMATE
        again.close()

    async def test_an_estimate_may_have_been_too_high(self, world: World):
        world.measure(await world.launch(MODEL), 100 * MIB)
        assert world.held == [0, int(100 * MIB * HEADROOM) + CONTEXT_BYTES]

    async def test_not_before_it_has_answered(self, world: World):
        resident = await world.launch(MODEL, answers=0)
        world.measure(resident, 3 * GIB)
        assert world.held == [0, ESTIMATE]

    async def test_nothing_where_torch_is_built_for_cpus(self, world: World):
        world.measure(await world.launch(MODEL), 0)
        assert world.held == [0, 0]

    async def test_says_nothing_of_the_machines_memory(self, world: World):
        """Weights on a device need little of the machine's memory, so that measurement does not
        change the device's estimate.
        """
        resident = await world.launch(MODEL)
        resident.replica.vitals.own_bytes = 200 * MIB
        world.measure(resident, None)
        assert resident.pool.spec.memory_bytes < GIB
        assert world.size(resident.pool.spec) == ESTIMATE

    async def test_what_is_kept_for_a_hot_one_grows_with_it(self, world: World):
        hot = replace(MODEL, readiness=Readiness.HOT)
        world.runtime.apply(hot, running=True)
        async with asyncio.timeout(10):
            # The sizes of the weights are read in a thread.
            while not world.runtime._residents:
                await asyncio.sleep(0.01)
        (resident,) = world.runtime._residents.values()
        books = world.runtime._memory.devices
        assert [book.reserved for book in books] == [0, ESTIMATE]
        answer_unknown(resident.replica)
        world.measure(resident, 3 * GIB)
        assert [book.reserved for book in books] == [0, int(3 * GIB * HEADROOM) + CONTEXT_BYTES]

    async def test_one_that_found_too_little(self, world: World):
        """The next replica claims more, for which others are evicted, up to the device's size."""
        for expected in (2 * ESTIMATE, 4 * ESTIMATE, 8 * ESTIMATE, 16 * ESTIMATE, 36 * GIB):
            resident = await world.launch(MODEL)
            wire: Any = resident.replica.channel
            wire.receive(LoadFailed("CUDA out of memory.", out_of_memory=True))
            await settle()
            assert world.size(MODEL) == expected
            world.runtime._processes._clean_up(resident)
        resident = await world.launch(MODEL)
        world.measure(resident, GIB)
        assert world.size(MODEL) == int(GIB * HEADROOM) + CONTEXT_BYTES

    async def test_one_that_failed_otherwise_says_nothing(self, world: World):
        resident = await world.launch(MODEL)
        wire: Any = resident.replica.channel
        wire.receive(LoadFailed("no such file."))
        await settle()
        assert world.size(MODEL) == ESTIMATE

    async def test_is_forgotten_with_the_model(self, world: World):
        resident = await world.launch(MODEL)
        world.measure(resident, 3 * GIB)
        world.runtime._launcher.forget(MODEL.source)
        assert world.size(MODEL) == ESTIMATE


async def test_a_device_that_vanishes(world: World):
    hot = replace(MODEL, readiness=Readiness.HOT)
    world.runtime.apply(hot, running=True)
    await settle()
    small, large = world.runtime._memory.devices
    large_device = world.table.there.pop()
    world.look()
    assert [gpu.budget_bytes for gpu in world.runtime.machine().devices] == [9 * GIB, 0]
    assert (small.reserved, large.reserved) == (ESTIMATE, 0), "it is kept elsewhere now"
    assert await world.told_of(replace(MODEL, id="dep_2")) == ("auto", SMALL)
    with pytest.raises(CapacityError, match="requires GPU 1, but this machine has GPU 0"):
        await world.runtime._memory.claim(
            "rep",
            Need("dep_3", 1),
            world.runtime._launcher._device_sizing.wanted(replace(MODEL, device="cuda:1")),
        )
    world.table.there = []
    world.look()
    assert small.total == 9 * GIB, "no answer says nothing"
    world.table.there = [large_device]
    world.look()
    assert [gpu.budget_bytes for gpu in world.runtime.machine().devices] == [0, 36 * GIB]


class TestAutomaticEngine:
    """`engine: auto` starts vLLM on a GPU if it is installed."""

    AUTO = replace(VLLM, engine="auto")

    async def test_is_vllm_with_its_share_of_the_device(self, world: World):
        resident = await world.launch(self.AUTO)
        told = world.told[-1]
        assert (told.engine, told.device, told.visible_devices) == ("vllm", "auto", LARGE)
        assert told.environment and told.environment.gpu_share == pytest.approx(0.9)
        assert told.notices == []
        assert world.held == [0, int(40 * GIB * 0.9)]
        assert resident.spec.engine == "auto"
        assert resident.is_apart
        assert not world.runtime._launcher.can_sleep(resident)

    @pytest.mark.parametrize(
        "changes",
        [
            {"engine": "torch"},
            {"config": {"speculation": "off"}},
            {"pipeline": "token-classification"},
        ],
    )
    async def test_is_not_vllm(self, world: World, changes: dict[str, Any]):
        resident = await world.launch(replace(self.AUTO, **changes))
        told = world.told[-1]
        assert told.engine == changes.get("engine", "auto")
        assert told.environment is None
        assert told.notices == []
        assert not resident.is_apart
        # A language model also allocates a cache of keys and values.
        cache = 0 if "pipeline" in changes else 2 * GIB
        assert world.held == [0, ESTIMATE + cache]

    async def test_is_not_vllm_with_adapters(self, world: World):
        spec = replace(self.AUTO, has_adapters=True)
        assert world.runtime._launcher._engines.on_device(spec) == spec

    async def test_is_not_vllm_on_the_cpu(self, world: World):
        await world.launch(replace(self.AUTO, device="cpu"))
        assert (world.told[-1].engine, world.told[-1].device) == ("auto", "cpu")

    async def test_is_another_one_after_vllm_could_not_load_it(self, tmp_path: Path):
        world = World(tmp_path, vllm_gpu_share=0.2)
        resident = await world.launch(self.AUTO)
        resident.replica._callbacks.on_load_failed(LoadError("unknown architecture"))
        await world.launch(self.AUTO)
        assert world.told[-1].engine == "auto"
        world.runtime._launcher.forget(self.AUTO.source)
        await world.launch(self.AUTO)
        assert world.told[-1].engine == "vllm"
        world.close()

    async def test_names_the_command_if_vllm_is_not_installed(self, tmp_path: Path):
        world = World(tmp_path)
        world.runtime._launcher._engines._settings.vllm_python = None
        await world.launch(self.AUTO)
        (notice,) = world.told[-1].notices
        assert world.told[-1].engine == "auto"
        assert "stoker engines install vllm" in notice.message
        await world.launch(replace(self.AUTO, device="cpu"))
        assert world.told[-1].notices == []
        world.close()
