"""A replica beyond its share of the cores gets a lower priority while other accounts have models
loaded.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from stoker.runtime.local.processes.cores import MEMORY_S, NICE, Cores
from stoker.runtime.local.processes.machine import computed
from stoker.sandbox.priority import may_set_nice, set_nice
from tests.runtime.pool.world import SPEC

TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.5


@dataclass
class Machine:
    """Machine with four cores. The test sets how much its replicas compute."""

    now: float = 0.0
    residents: dict[str, Any] = field(default_factory=dict[str, Any])
    ticks: dict[int, float] = field(default_factory=dict[int, float])
    nice: dict[int, int] = field(default_factory=dict[int, int])
    is_busy: bool = False
    """True if the kernel's calls must be retried."""

    def __post_init__(self) -> None:
        residents: Any = self.residents
        self.cores = Cores(
            residents,
            self.pid,
            cores=4,
            ticks=lambda pid: int(self.ticks[pid]),
            give_way=self.give_way,
            clock=lambda: self.now,
        )

    def pid(self, replica_id: str) -> int:
        return int(replica_id.removeprefix("rep_"))

    def give_way(self, pid: int, nice: int) -> bool:
        if not self.is_busy:
            self.nice[pid] = nice
        return not self.is_busy

    def begin(self, pid: int, account: str) -> None:
        spec = replace(SPEC, account_id=account)
        self.residents[f"rep_{pid}"] = type("Resident", (), {"spec": spec, "descendants": ()})
        self.ticks[pid], self.nice[pid] = 0, 0

    def passes(self, seconds: float, **cores: float) -> None:
        """Advances the clock while each process uses its number of cores: `p1=0.5`."""
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            for name, used in cores.items():
                self.ticks[int(name[1:])] += used * LOOK_S * TICKS
            self.cores.look()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_account_alone_has_all_cores(machine: Machine) -> None:
    machine.begin(1, "A")
    machine.begin(2, "A")
    machine.passes(60, p1=2, p2=2)
    assert machine.nice == {1: 0, 2: 0}


def test_who_uses_more_than_a_share_gives_way_with_all_replicas(machine: Machine) -> None:
    for pid, account in ((1, "A"), (2, "A"), (3, "B")):
        machine.begin(pid, account)
    machine.passes(1, p1=3.5, p3=0.1)
    assert machine.nice == {1: 0, 2: 0, 3: 0}, "a moment's work is no flood"
    machine.passes(3 * MEMORY_S, p1=3.5, p3=0.1)
    assert machine.nice == {1: NICE, 2: NICE, 3: 0}
    machine.begin(4, "A")
    machine.passes(LOOK_S)
    machine.passes(LOOK_S)
    assert machine.nice[4] == NICE, "a new replica of a flood's"
    machine.passes(3 * MEMORY_S, p1=0.5, p3=3.5)
    assert machine.nice == {1: 0, 2: 0, 3: NICE, 4: 0}


def test_equal_shares_are_nobodys_fault(machine: Machine) -> None:
    machine.begin(1, "A")
    machine.begin(2, "B")
    machine.passes(60, p1=2, p2=2)
    assert machine.nice == {1: 0, 2: 0}


def test_it_ends_with_the_others(machine: Machine) -> None:
    machine.begin(1, "A")
    machine.begin(2, "B")
    machine.passes(20, p1=3.5)
    assert machine.nice == {1: NICE, 2: 0}
    del machine.residents["rep_2"]
    machine.passes(LOOK_S, p1=3.5)
    assert machine.nice[1] == 0


def test_it_is_tried_again(machine: Machine) -> None:
    machine.begin(1, "A")
    machine.begin(2, "B")
    machine.is_busy = True
    machine.passes(20, p1=3.5)
    assert machine.nice[1] == 0
    machine.is_busy = False
    machine.passes(LOOK_S, p1=3.5)
    assert machine.nice[1] == NICE


def test_the_kernel_does_it() -> None:
    """A process with a lowered priority gets only the time that another process on its core
    leaves.
    """
    if not may_set_nice():
        pytest.skip("CAP_SYS_NICE is missing: priorities cannot be taken back")
    core = {min(os.sched_getaffinity(0))}
    program = "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()"
    burning = [
        subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for _ in range(2)
    ]
    try:
        for process in burning:
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), core)
        lowered, other = (process.pid for process in burning)
        # Wait until both processes compute.
        while not all(computed(process.pid) > TICKS // 5 for process in burning):
            time.sleep(0.02)
        assert set_nice(lowered, NICE)
        before = computed(lowered), computed(other)
        # Measured in processor time, which does not depend on other load.
        while computed(other) < before[1] + TICKS:
            time.sleep(0.02)
        assert computed(lowered) - before[0] < TICKS / 4
        assert set_nice(lowered, 0)
        assert os.getpriority(os.PRIO_PROCESS, lowered) == 0
    finally:
        for process in burning:
            process.kill()
            process.wait()
