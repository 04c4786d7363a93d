"""Facts about GPUs that `stoker doctor` reads from the driver's program."""

import os
from pathlib import Path

import pytest

from stoker.replica import gpu_facts
from stoker.replica.gpu_checks import memory_check
from stoker.replica.gpu_facts import GpuListing, GpuMemory
from tests.support.driver_program import DriverProgram


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverProgram:
    program = DriverProgram(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.folder}{os.pathsep}{os.environ['PATH']}")
    return program


def test_devices(program: DriverProgram) -> None:
    program.write(devices="580.95.05, NVIDIA H100 80GB HBM3, 81559\n580.95.05, NVIDIA L4, 23034")
    names = ("NVIDIA H100 80GB HBM3, 81,559 MiB", "NVIDIA L4, 23,034 MiB")
    assert gpu_facts.list_gpus() == GpuListing(names, driver="580.95.05")


def test_an_error_is_shown(program: DriverProgram) -> None:
    program.write(devices="Failed to initialize NVML: Driver/library version mismatch")
    message = "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"
    assert gpu_facts.list_gpus() == GpuListing(problem=message)
    assert gpu_facts.used_mib() is None


def test_a_hang_is_shown(program: DriverProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_facts, "_ANSWER_S", 0.2)
    program.sleeps()
    message = "nvidia-smi did not answer within 0.2 s: the driver hangs."
    assert gpu_facts.list_gpus() == GpuListing(problem=message)


def test_used_memory_of_all_devices(program: DriverProgram) -> None:
    program.write(devices="1024\n[N/A]\n512")
    assert gpu_facts.used_mib() == 1536


def test_memory_and_who_holds_it(program: DriverProgram) -> None:
    program.write(
        devices="30512, 81559\n4, 23034",
        processes="12, /usr/bin/python3, 500\n13, /opt/other, 30000\n14, [N/A], [N/A]",
    )
    memories, processes = gpu_facts.memories(), gpu_facts.processes()
    assert memories == [GpuMemory(30512, 81559), GpuMemory(4, 23034)]
    assert [process.pid for process in processes] == [13, 12]
    check = memory_check(memories, processes, 0.9)
    assert check.status == "warn"
    assert check.found == (
        "30,512 of 81,559 MiB in use, so that replicas may use 45,942 MiB; "
        "4 of 23,034 MiB in use, so that replicas may use 20,727 MiB. "
        "In use by other (process 13, 30,000 MiB), python3 (process 12, 500 MiB)"
    )
    assert "STOKER_GPU_MEMORY_SHARE" in check.hint
    assert memory_check(memories[1:], [], 0.9).status == "ok"
    # Half of the card each: what the other server holds takes nothing of this half.
    assert "may use 40,779 MiB" in memory_check(memories, processes, 0.5).found


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_facts.list_gpus() == GpuListing()
    assert gpu_facts.used_mib() is None
