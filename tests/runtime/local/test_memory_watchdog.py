"""Tests of the memory limits of replicas and of the replicas that are ended, with injected
sizes.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import MIB
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.processes import machine, memory_watchdog
from stoker.runtime.local.processes.memory_watchdog import (
    ALWAYS_BYTES,
    AT_ONCE_BYTES,
    MemoryWatchdog,
)
from stoker.runtime.observed import Reason
from tests.artifacts.support import eventually
from tests.runtime.local.test_sizing import World

HOST_MIB = 300
HOST, REPLICA = 1, 2


class Host:
    own_pid = HOST

    def pid(self, replica_id: str) -> int:
        return REPLICA


class Watched(World):
    """A replica with an estimate of 300 MiB and a budget of 1,024 MiB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sizes = {HOST: HOST_MIB, REPLICA: HOST_MIB}
        self.below: dict[int, int] = {}
        """Memory of the replica's child processes by pid, as proportional share, in MiB."""
        host: Any = Host()
        self.memory = self.runtime._memory
        self.guard = MemoryWatchdog(
            host,
            self.runtime._residents,
            self.memory,
            lambda pid: self.sizes[pid] * MIB,
            below=lambda pids: {pid: [*self.below] for pid in pids},
            measure_below=lambda pid: self.below[pid] * MIB,
        )
        self.guard._has_device = False
        self.ended: list[tuple[Reason, str]] = []
        pool: Any = self.resident.pool
        pool.end = lambda _replica, reason, why: self.ended.append((reason, why))
        self.guard.look()

    def holds(self, mib: int) -> None:
        self.sizes[REPLICA] = HOST_MIB + mib
        self.guard.look()


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_h5_a_claim_grows_with_the_model_where_memory_is_free(watched: Watched) -> None:
    watched.holds(250)
    assert watched.memory.main.held == 300 * MIB, "less than it has claimed"
    watched.holds(800)
    assert watched.memory.main.held == 800 * MIB
    watched.measure(200)
    assert watched.memory.main.held == 800 * MIB, "what it holds now, not what its heartbeats say"
    watched.holds(200)
    watched.measure(200)
    assert watched.memory.main.held == int(200 * MIB * 1.1)
    assert not watched.ended


async def test_h5_the_budget_binds(watched: Watched) -> None:
    """A replica may hold the whole budget, or slightly more than twice its claim if that is
    more.
    """
    watched.holds(1024)
    assert not watched.ended
    watched.holds(1536)
    ((reason, why),) = watched.ended
    assert reason is Reason.MEMORY_EXCEEDED
    assert why == ("it held 1.5 GiB of memory, with a claim of 1.0 GiB and a limit of 1.0 GiB")


async def test_h5_what_others_work_with_is_not_its_own(watched: Watched) -> None:
    assert watched.memory.take("rep_2", Need("dep_2", 700 * MIB))
    most = 2 * 300 + ALWAYS_BYTES // MIB
    watched.holds(most)
    assert not watched.ended, "an estimate may be wrong by so much"
    watched.holds(most + 1)
    assert watched.ended


async def test_h5_growth_at_once_is_bounded_however_much_is_free(watched: Watched) -> None:
    watched.memory.main.total = 1 << 40
    most = 4 * 300 + AT_ONCE_BYTES // MIB
    watched.holds(most)
    assert not watched.ended
    watched.holds(most + 1)
    assert watched.ended


async def test_h5_a_language_models_cache_comes_on_top(watched: Watched) -> None:
    watched.resident.spec = replace(watched.resident.spec, pipeline="text-generation")
    watched.holds(1024 + 1024 // 4)
    assert not watched.ended
    watched.holds(1024 + 1024 // 4 + 1)
    assert watched.ended


def test_h5_the_kernel_is_asked() -> None:
    import os

    before = machine.own_bytes(os.getpid())
    # Large enough that other memory that is freed meanwhile does not matter.
    block = b"x" * (512 * MIB)
    after = machine.own_bytes(os.getpid())
    assert before and after
    assert after - before == pytest.approx(len(block), rel=0.1)
    assert machine.own_bytes(0) is None


@pytest.mark.case(34)
async def test_what_is_below_a_replica_counts(watched: Watched) -> None:
    """Child processes count. One hides its maps. A small one holds only the memory that it was
    forked with.
    """
    watched.below = {3: 300, 4: 0, 5: 1}
    watched.sizes |= {3: HOST_MIB + 310, 4: HOST_MIB + 200, 5: HOST_MIB + 10}
    for _ in range(4):
        watched.holds(100)
    assert watched.resident.below == 500 * MIB
    assert watched.memory.main.held == 600 * MIB
    watched.below = {3: 1200}
    watched.sizes[3] = HOST_MIB + 1200
    for _ in range(4):
        watched.holds(0)
    ((reason, _),) = set(watched.ended)
    assert reason is Reason.MEMORY_EXCEEDED


@pytest.mark.case(34)
async def test_a_replicas_folder_is_bounded(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    watched.resident.may_write = 10 * MIB
    await watched.guard.look_at_folders(lambda _: folder)
    (folder / "file").write_bytes(b"x" * (9 * MIB))
    await watched.guard.look_at_folders(lambda _: folder)
    assert not watched.ended
    (folder / "other").write_bytes(b"x" * (2 * MIB))
    await watched.guard.look_at_folders(lambda _: folder)
    ((reason, why),) = watched.ended
    assert (reason, "its folder held 11 MiB" in why) == (Reason.MEMORY_EXCEEDED, True), why
    (folder / "other").unlink()
    monkeypatch.setattr(memory_watchdog, "FILES", 3)
    for number in range(5):
        (folder / str(number)).touch()
    await watched.guard.look_at_folders(lambda _: folder)
    assert len(watched.ended) == 2


def test_processes_below_at_any_depth() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "code = 'import time; x = bytes([1]) * (80 << 20); print(flush=True); time.sleep(60)'\n"
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            descendants = machine.descendants([os.getpid(), process.pid])
            (grandchild,) = descendants[process.pid]
            assert {process.pid, grandchild} <= {*descendants[os.getpid()]}
            assert 80 * MIB < machine.private_bytes(grandchild) < 120 * MIB
        finally:
            for pid in (*descendants[process.pid], process.pid):
                os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: machine.private_bytes(grandchild) == 0)
