"""Facts about GPUs that `stoker doctor` reads from the driver's program."""

import os
from pathlib import Path

import pytest

from stoker.replica import gpu_facts
from stoker.replica.gpu_facts import GpuListing
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


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_facts.list_gpus() == GpuListing()
    assert gpu_facts.used_mib() is None
