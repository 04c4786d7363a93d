"""Tests of when workers are prepared, used and ended, with a host that only records commands."""

import asyncio
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB, Settings
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.device_sizing import CONTEXT_BYTES, DeviceSizing
from stoker.runtime.local.memory.device_watch import DeviceWatch, DriverReading
from stoker.runtime.local.memory.devices import DeviceNeed
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable
from stoker.runtime.local.processes import prepared_workers
from stoker.runtime.local.processes.gpu_sandbox import GpuSandbox
from stoker.runtime.local.processes.linked_models import link_model
from stoker.runtime.local.processes.prepared_workers import QUIET_S, RETRY_S, START_S
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.local.start_plan import StartPlan
from stoker.sandbox import Opening, Wall
from stoker.wire.host_messages import WorkerReport
from stoker.wire.protocol import WorkerSpec
from tests.support.graphics import Table, device

GPU = device(0, 4096 * MIB)


class Host:
    """Stands in for the engine host."""

    own_pid = 0

    def __init__(self) -> None:
        self.ready = True
        self.cuda_problem = ""
        self.prepared: list[WorkerSpec] = []
        self.killed: list[str] = []
        self.is_importing = False

    def listen(self, *_callbacks: object) -> None: ...

    def prepare(self, worker: WorkerSpec) -> None:
        self.prepared.append(worker)

    def kill(self, worker_id: str) -> None:
        self.killed.append(worker_id)

    def pid(self, _worker_id: str) -> int | None:
        return None if self.is_importing else 1


class World:
    def __init__(self, folder: Path, most: int = 1) -> None:
        settings = Settings(data_dir=folder / "data", gpu_prepared_workers=most)
        self.now = 1000.0
        self.host: Any = Host()
        self.residents = ReplicaTable()
        self.memory = MemoryAllocator(8192 * MIB, self.residents, devices=[GPU])
        self.cells = Sandboxes(settings)
        self.cells.open()
        self.gpu_sandbox = GpuSandbox(settings, self.cells)
        self.gpu_sandbox._has_ended.set()
        self.sizing = DeviceSizing(settings, Measurements(folder / "cache"), GPU.total_bytes)
        self.pool = prepared_workers.PreparedWorkers(
            settings,
            host=self.host,
            memory=self.memory,
            cells=self.cells,
            residents=self.residents,
            gpu_sandbox=self.gpu_sandbox,
            sizing=self.sizing,
            cores=2,
            clock=lambda: self.now,
        )
        self.residents.backgrounds = [self.pool]

    @property
    def held(self) -> list[int]:
        return [book.held for book in (self.memory.main, *self.memory.devices)]

    def ticks(self, seconds: float = 0) -> None:
        self.now += seconds
        self.pool.tick()

    def ready(self) -> str:
        """Prepares a worker and lets it report that it waits."""
        self.ticks()
        worker_id = self.host.prepared[-1].id
        self.pool.prepared(WorkerReport(worker_id))
        return worker_id

    def dies(self, worker_id: str) -> None:
        self.pool.exited(worker_id)


@pytest.fixture
async def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.cells.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    blobs, folder = tmp_path / "blobs", tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    blobs.mkdir()
    (blobs / "1").write_text("weights")
    (folder / "inner" / "model.safetensors").symlink_to(blobs / "1")
    (folder / "config.json").write_text("{}")
    return folder


async def test_one_is_kept_for_each_gpu(world: World):
    world.ticks()
    (spec,) = world.host.prepared
    assert (spec.device, spec.visible_devices) == ("cuda", GPU.uuid)
    assert Path(spec.models).is_dir() and not [*Path(spec.models).iterdir()]
    assert world.held == [prepared_workers.MAIN_BYTES, CONTEXT_BYTES]
    world.pool.prepared(WorkerReport(spec.id))
    assert world.memory.device_stats()[0].prepared_workers == 1
    world.ticks(100)
    assert len(world.host.prepared) == 1
    world.dies(spec.id)
    assert world.held == [0, 0]


async def test_none_without_the_setting_or_before_the_host_is_ready(tmp_path: Path):
    world = World(tmp_path, most=0)
    world.ticks()
    assert not world.host.prepared
    world.cells.close()
    world = World(tmp_path)
    world.host.ready = False
    world.ticks()
    world.host.ready, world.host.cuda_problem = True, "torch has initialised CUDA"
    world.ticks()
    assert not world.host.prepared
    world.cells.close()


async def test_several_one_after_another(tmp_path: Path):
    world = World(tmp_path, most=3)
    for count in (1, 2, 3, 3):
        world.ticks()
        world.ticks()
        assert len(world.host.prepared) == count, "none while another one starts"
        world.pool.prepared(WorkerReport(world.host.prepared[-1].id))
    world.cells.close()


async def test_a_context_that_was_measured_later_is_no_other_process(tmp_path: Path):
    world = World(tmp_path, most=2)
    world.ready()
    world.ready()
    watch = DeviceWatch(
        Table([GPU]),
        first=[GPU],
        memory=world.memory,
        sizing=world.sizing,
        residents=world.residents,
        pid=lambda _id: None,
        prepared=world.pool.pids,
    )
    context = CONTEXT_BYTES + 200 * MIB
    world.sizing.measure_context(GPU.kind, context)
    watch.apply(DriverReading([replace(GPU, used_bytes=2 * context)]))
    assert world.memory.devices[0].other_bytes == 0
    watch.apply(DriverReading([replace(GPU, used_bytes=3 * context)]))
    assert world.memory.devices[0].other_bytes == context
    world.cells.close()


async def test_it_becomes_a_replica_and_is_followed_in_a_quiet_moment(world: World, model: Path):
    worker_id = world.ready()
    await world.memory.claim("rep_1", Need("dep", MIB), DeviceNeed(size=MIB, takes_prepared=True))
    worker = await world.pool.take("rep_1", model, (), is_plain=True)
    assert worker and worker.id == worker_id
    weights = worker.models / "inner" / "model.safetensors"
    assert weights.read_text() == "weights" and not weights.is_symlink()
    assert weights.stat().st_ino == (model / "inner" / "model.safetensors").stat().st_ino
    world.pool.started("rep_1", worker)
    world.dies(worker_id)
    assert worker.models.is_dir(), "the replica's folder"
    assert world.held == [MIB, MIB]
    world.ticks(QUIET_S - 1)
    assert len(world.host.prepared) == 1
    world.ticks(1)
    assert len(world.host.prepared) == 2


@pytest.mark.parametrize("why", ["openings", "execution", "files"])
async def test_a_worker_that_does_not_suit_ends(world: World, model: Path, why: str):
    worker_id = world.ready()
    await world.memory.claim("rep_1", Need("dep", MIB), DeviceNeed(size=MIB, takes_prepared=True))
    openings = [Opening(Wall.FILES, "/etc/hostname")] if why == "openings" else []
    folder = Path("/proc/self/net") if why == "files" else model
    assert await world.pool.take("rep_1", folder, openings, is_plain=why != "execution") is None
    assert world.host.killed == [worker_id]
    book = world.memory.devices[0]
    assert (book.held, book.leaving) == (MIB + CONTEXT_BYTES, CONTEXT_BYTES), "until it has ended"
    world.dies(worker_id)
    assert world.held == [MIB, MIB]


async def test_a_worker_with_a_part_of_a_model_is_not_used_again(
    world: World, model: Path, monkeypatch: pytest.MonkeyPatch
):
    async def cancelled(*_arguments: object) -> None:
        raise asyncio.CancelledError

    worker_id = world.ready()
    await world.memory.claim("rep_1", Need("dep", MIB), DeviceNeed(size=MIB, takes_prepared=True))
    monkeypatch.setattr(asyncio, "to_thread", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await world.pool.take("rep_1", model, (), is_plain=True)
    world.memory.release("rep_1")
    assert world.host.killed == [worker_id]
    assert world.memory.device_stats()[0].prepared_workers == 0
    world.dies(worker_id)
    assert world.held == [0, 0]


async def test_a_start_without_a_worker_takes_none(world: World, model: Path):
    world.ready()
    await world.memory.claim("rep_1", Need("dep", MIB), DeviceNeed(size=MIB))
    assert await world.pool.take("rep_1", model, (), is_plain=True) is None
    assert not world.host.killed


async def test_a_worker_that_died_after_the_claim_is_not_used(world: World, model: Path):
    worker_id = world.ready()
    await world.memory.claim("rep_1", Need("dep", MIB), DeviceNeed(size=MIB, takes_prepared=True))
    world.dies(worker_id)
    assert await world.pool.take("rep_1", model, (), is_plain=True) is None
    assert world.held == [MIB, MIB]


async def test_it_gives_way_to_a_claim(world: World):
    worker_id = world.ready()
    need = DeviceNeed(size=4000 * MIB)
    assert world.memory.has_room(Need("dep", MIB), need)
    assert not world.memory.take("rep_1", Need("dep", MIB), need)
    assert world.host.killed == [worker_id]
    world.dies(worker_id)
    assert world.memory.take("rep_1", Need("dep", MIB), need)
    world.ticks(100)
    assert len(world.host.prepared) == 1, "no room for another one"


async def test_no_other_one_takes_the_memory_that_it_gave_up(world: World):
    worker_id = world.ready()
    need = DeviceNeed(size=4000 * MIB)
    assert not world.memory.take("rep_1", Need("dep", MIB), need)
    world.dies(worker_id)
    world.ticks(QUIET_S - 1)
    assert world.memory.take("rep_1", Need("dep", MIB), need)


async def test_new_code_replaces_it_once(world: World):
    worker_id = world.ready()
    world.pool.code_imported()
    assert world.memory.device_stats()[0].prepared_workers == 0
    world.ticks(QUIET_S - 1)
    world.pool.code_imported()
    world.ticks(QUIET_S - 1)
    assert not world.host.killed
    world.ticks(1)
    assert world.host.killed == [worker_id]
    world.dies(worker_id)
    world.ready()
    assert len(world.host.prepared) == 2


async def test_failures_are_logged_once_and_end(world: World, caplog: pytest.LogCaptureFixture):
    for delay in (0.0, *RETRY_S):
        world.ticks(delay)
        worker_id = world.host.prepared[-1].id
        world.pool.prepared(WorkerReport(worker_id, "no memory is left"))
        world.dies(worker_id)
        count = len(world.host.prepared)
        world.ticks(1)
        assert len(world.host.prepared) == count
        world.now -= 1
    world.ticks(100_000)
    assert len(world.host.prepared) == 1 + len(RETRY_S)
    assert [record.getMessage() for record in caplog.records] == [
        "no prepared worker on GPU 0, so replicas start later: no memory is left"
    ]
    assert world.held == [0, 0]


async def test_a_worker_without_a_folder_holds_no_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def fail(_name: str) -> None:
        raise OSError("no space is left")

    with monkeypatch.context() as patched:
        patched.setattr(world.cells, "make_models", fail)
        for _ in range(3):
            world.ticks()
    assert world.held == [0, 0] and not world.cells._made and not world.host.prepared
    world.ticks(RETRY_S[0])
    assert len(world.host.prepared) == 1


async def test_a_killed_one_is_replaced_later(world: World):
    world.dies(world.ready())
    world.ticks(RETRY_S[0] - 1)
    assert len(world.host.prepared) == 1
    world.ticks(1)
    assert len(world.host.prepared) == 2


async def test_the_end_of_the_host_is_no_failure(world: World):
    worker_id = world.ready()
    world.host.ready = False
    world.dies(worker_id)
    world.host.ready = True
    world.ticks()
    assert len(world.host.prepared) == 2


async def test_one_that_does_not_get_ready_ends(world: World):
    world.ticks()
    world.ticks(START_S + 1)
    assert world.host.killed == [world.host.prepared[0].id]


async def test_the_time_until_the_host_forks_it_does_not_count(world: World):
    world.host.is_importing = True
    world.ticks()
    world.ticks(START_S + 1)
    world.host.is_importing = False
    world.ticks(START_S)
    assert not world.host.killed
    world.ticks(1)
    assert world.host.killed


async def test_a_device_that_disappears_loses_it(world: World):
    worker_id = world.ready()
    world.memory.found([])
    world.ticks()
    assert worker_id in world.host.killed
    world.dies(worker_id)
    world.ticks(1000)
    assert len(world.host.prepared) == 1
    world.memory.found([GPU])
    world.ticks()
    assert len(world.host.prepared) == 2


@pytest.mark.parametrize("name", ["execution", "environment", "adapters"])
def test_a_start_that_needs_other_folders_uses_no_worker(name: str):
    names = [field.name for field in fields(StartPlan)]
    nothing: dict[str, Any] = dict.fromkeys(names)
    plan = StartPlan(**nothing)
    assert plan.is_plain
    needs: dict[str, Any] = {name: "/folder"}
    assert not replace(plan, **needs).is_plain


def test_a_model_with_too_many_files_is_not_linked(tmp_path: Path):
    model, folder = tmp_path / "model", tmp_path / "folder"
    model.mkdir()
    folder.mkdir()
    for number in range(1001):
        (model / str(number)).touch()
    with pytest.raises(OSError, match="more than 1000 files"):
        link_model(model, folder)
