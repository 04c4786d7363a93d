"""Tests of conversions that hang or grow, with an injected clock and an idle process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB, Settings
from stoker.base.media_limits import MediaLimits
from stoker.runtime.local.conversions import conversion_jobs
from stoker.runtime.local.conversions.conversion_jobs import ConversionJobs
from stoker.runtime.local.conversions.conversions import Conversions
from stoker.runtime.local.conversions.trials import TrialVerdicts
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import ReplicaTable, Resident
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Limits
from stoker.wire.conversions import VERDICT, Conversion, ConversionTrial, WeightFormat
from stoker.wire.protocol import Loaded
from tests.runtime.pool.world import SPEC, Clock, Flight, Wire

RESTS = "import time; print(flush=True); time.sleep(600)"
STALL_S = 180.0
WEIGHTS = 10 * MIB
NEED = 4 * WEIGHTS + 128 * MIB


class Host:
    """Fake engine host with a process that does nothing."""

    own_pid = 0

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", RESTS], stdout=subprocess.PIPE)
        # Computation during its start would count as progress.
        assert self.process.stdout
        self.process.stdout.readline()
        self.begun: list[Conversion | ConversionTrial] = []
        self.killed: list[str] = []

    def convert(self, job: Conversion) -> None:
        self.begun.append(job)

    try_out: Any = convert

    def kill(self, job_id: str) -> None:
        self.killed.append(job_id)

    def pid(self, job_id: str) -> int:
        return self.process.pid


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.host = Host()
        self.residents = ReplicaTable()
        self.memory = MemoryAllocator(1024 * MIB, self.residents, self.clock)
        self.events: list[tuple[str, str]] = []
        self.cells = Sandboxes(Settings(data_dir=folder))
        self.cells.open()
        host: Any = self.host
        self.jobs = ConversionJobs(
            host,
            self.cells,
            TrialVerdicts(threads=1),
            log_path=folder / "log",
            media=MediaLimits(),
            threads=1,
            limits=Limits(600, 15, STALL_S, 20),
            memory=self.memory,
            on_given_up=lambda deployment, why: self.events.append((deployment, why)),
            on_rejected=lambda *_: None,
            clock=self.clock,
        )
        self.residents.backgrounds = [self.jobs]
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "model.safetensors").write_bytes(bytes(WEIGHTS))
        self.folder = folder / "converted"

    def convert(self, weight_format: WeightFormat | None = None, **fields: bool) -> bool:
        before = len(self.host.begun)
        self.jobs.convert(SPEC, self.model, self.folder, weight_format, **fields)
        return len(self.host.begun) > before

    def passes(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.jobs.kill_hung()

    def exits(self, status: int) -> None:
        self.jobs.exited(self.host.begun[-1].id, status)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.host.process.kill()
    world.host.process.communicate()
    world.cells.close()


@pytest.mark.fault("c6")
def test_one_without_a_folder_keeps_no_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.cells, "make", full)
        assert not world.convert()
    assert world.memory.main.held == 0
    world.clock.now += 61
    assert world.convert()


def test_m8_one_that_hangs_frees_the_place_and_the_memory(world: World) -> None:
    assert world.convert()
    assert world.memory.main.held == NEED
    world.passes(STALL_S - 1)
    assert not world.host.killed
    assert not world.convert(), "one at a time"
    world.passes(3)
    assert world.host.killed == [world.host.begun[0].id]
    world.exits(-9)
    assert world.memory.main.held == 0
    assert not world.jobs.is_busy
    ((deployment, why),) = world.events
    assert (deployment, why) == (SPEC.id, "It hung: there was no progress for 180 s.")
    assert world.jobs.given_up(world.folder) == why
    assert not world.convert(), "it is not tried for ever"


@pytest.mark.parametrize("fields", [{"weight_format": "int8"}, {"in_int8": True}])
def test_one_that_rounds_claims_more(world: World, fields: dict[str, Any]) -> None:
    assert world.convert(**fields)
    assert world.memory.main.held == NEED + 2 * WEIGHTS
    job = world.host.begun[0]
    assert isinstance(job, Conversion)
    assert (job.weight_format, job.in_int8) == (
        fields.get("weight_format"),
        fields.get("in_int8", False),
    )


def test_m8_one_that_computes_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_jobs, "computed", lambda _pid: int(world.clock.now))
    assert world.convert()
    world.passes(3600)
    assert not world.host.killed
    world.passes(1)
    assert world.host.killed
    world.exits(-9)
    assert world.events == [(SPEC.id, "It did not finish within 3600 s.")]


def test_m8_one_that_takes_far_more_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {"bytes": 0}
    monkeypatch.setattr(conversion_jobs, "own_bytes", lambda _pid: size["bytes"])
    assert world.convert()
    world.passes(1)
    size["bytes"] = 800 * MIB
    world.passes(1)
    assert world.memory.main.held == 800 * MIB, "others know of it"
    size["bytes"] = 4096 * MIB
    world.passes(1)
    assert world.host.killed
    world.exits(-9)
    assert "It held 4.0 GiB of memory, with a claim of 168 MiB" in world.events[0][1]


def test_m8_it_waits_for_memory_and_makes_room_for_replicas(world: World) -> None:
    assert world.memory.take("rep_1", Need("dep_1", 1000 * MIB))
    assert not world.convert()
    world.memory.release("rep_1")
    assert world.convert()
    # A claim needs all the memory.
    (job,) = world.jobs.evictable()
    assert job.replica_id == world.host.begun[0].id
    world.residents.evict(job.replica_id)
    assert world.host.killed == [job.replica_id]
    world.exits(-9)
    assert world.memory.main.held == 0
    assert not world.events
    assert not world.convert(), "not at once"
    world.clock.now += 61
    assert world.convert()


def convertible_replica() -> ReplicaHandle:
    wire: Any = Wire()
    replica = ReplicaHandle(replica_id="rep_1", flight=Flight(), generation=0, channel=wire)
    wire.receive(Loaded(1.0, convertible=True))
    replica.vitals.busy_s = 1.0
    return replica


async def test_accounts_take_turns(world: World, tmp_path: Path) -> None:
    """An account with many models does not delay another account's conversion until all are
    done.
    """
    host: Any = world.host
    conversions = Conversions(
        folder=tmp_path / "cache",
        log_path=tmp_path / "log",
        host=host,
        cells=world.cells,
        after_s=0,
        media=MediaLimits(),
        threads=1,
        limits=Limits(600, 15, STALL_S, 20),
        memory=world.memory,
        on_quarantined=lambda *_: None,
        clock=world.clock,
    )
    nobody: Any = None
    residents = [
        Resident(
            convertible_replica(),
            nobody,
            replace(SPEC, id=f"{account}{number}", account_id=account),
            world.model,
            tmp_path / f"{account}{number}",
        )
        for account, number in [("many", 1), ("many", 2), ("many", 3), ("one", 1), ("two", 1)]
    ]
    for _ in residents:
        for resident in conversions.in_turn(residents):
            conversions.offer(
                resident.replica, resident.spec, resident.model_dir, resident.conversion
            )
        job = world.host.begun[-1]
        assert isinstance(job, Conversion)
        made = Path(job.folder)
        made.mkdir()
        (made / VERDICT).write_text(json.dumps({"forms": [], "reason": "not for this test"}))
        conversions.exited(job.id, 0)
    names = [Path(job.folder).name for job in world.host.begun if isinstance(job, Conversion)]
    assert names == ["many1", "one1", "two1", "many2", "many3"]
