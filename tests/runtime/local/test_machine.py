from pathlib import Path

import psutil
import pytest

from stoker.runtime import machine_memory
from stoker.runtime.local.processes import machine
from stoker.runtime.local.processes.machine import KernelKills, kernel_kills
from stoker.runtime.machine_memory import machine_bytes

GIB = 1 << 30


def test_no_more_than_there_is():
    assert 0 < machine_bytes() <= psutil.virtual_memory().total


def test_a_control_group_allows_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memory.max").write_text("1073741824\n")
    monkeypatch.setattr(machine_memory, "control_groups", lambda: [tmp_path, tmp_path / "none"])
    assert machine_bytes() == GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_bytes() > GIB


def test_kills_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "control_groups", lambda: [tmp_path])
    before = kernel_kills()
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert kernel_kills() == before + 2


def test_a_kill_tells_of_what_ends_then_and_not_long_after():
    now, killed = 100.0, 3
    kills = KernelKills(lambda: killed, lambda: now)
    assert not kills.just_now(), "those before are others'"
    killed, now = 4, 101.0
    assert kills.just_now()
    killed, now = 5, 200.0
    kills.look()
    now = 204.0
    assert kills.just_now()
    now = 300.0
    assert not kills.just_now()
