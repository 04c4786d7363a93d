"""Facts about the machine's GPUs that need no CUDA in this process."""

import csv
from dataclasses import dataclass
from pathlib import Path

from stoker.base.driver_program import DriverProgram
from stoker.sandbox import gpu_places

_ANSWER_S = 20.0
_REQUIRED, _REQUIRED_SINCE_570 = ("nvidiactl", "nvidia-uvm"), ("nvidia-uvm-tools",)
"""Device files that CUDA needs: in all releases of the driver, and since release 570."""


@dataclass(frozen=True)
class GpuListing:
    """Devices as `nvidia-smi` lists them."""

    names: tuple[str, ...] = ()
    driver: str = ""
    problem: str = ""
    """Reason that the program did not answer. Empty if it answered or is not installed."""


def list_gpus() -> GpuListing:
    rows, problem = _ask("--query-gpu=driver_version,name,memory.total")
    valid = [row for row in rows if len(row) == 3 and row[2].isdecimal()]
    if not valid:
        # The program prints its errors to standard output.
        return GpuListing(
            problem=problem or (f"{gpu_places.PROGRAM}: {', '.join(rows[0])}" if rows else "")
        )
    names = tuple(f"{name}, {int(mib):,} MiB" for _, name, mib in valid)
    return GpuListing(names, driver=valid[0][0])


def used_mib() -> int | None:
    """Returns the used memory of all devices in MiB. None if unknown."""
    rows, _ = _ask("--query-gpu=memory.used")
    numbers = [int(row[0]) for row in rows if row[0].isdecimal()]
    return sum(numbers) if numbers else None


@dataclass(frozen=True)
class GpuMemory:
    """Memory of one device in MiB."""

    used: int
    total: int


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a device."""

    pid: int
    name: str
    held_mib: int


def memories() -> list[GpuMemory]:
    """Returns the memory of each device. Empty if unknown."""
    rows, _ = _ask("--query-gpu=memory.used,memory.total")
    return [
        GpuMemory(*map(int, row))
        for row in rows
        if len(row) == 2 and all(cell.isdecimal() for cell in row)
    ]


def processes() -> list[GpuProcess]:
    """Returns the processes that hold memory, the largest first. In a container, some may be
    missing.
    """
    rows, _ = _ask("--query-compute-apps=pid,process_name,used_memory")
    holders = [
        GpuProcess(int(pid), name, int(held))
        for pid, name, held in (row for row in rows if len(row) == 3)
        if pid.isdecimal() and held.isdecimal()
    ]
    return sorted(holders, key=lambda process: process.held_mib, reverse=True)


def missing_devices() -> tuple[list[str], bool]:
    """Returns the missing device files, and whether CUDA cannot start without them."""
    missing = [
        name for name in (*_REQUIRED, *_REQUIRED_SINCE_570) if not Path("/dev", name).exists()
    ]
    return [f"/dev/{name}" for name in missing], any(name in _REQUIRED for name in missing)


def has_driver() -> bool:
    """Returns True if anything suggests an NVIDIA driver."""
    return gpu_places.has_program() or gpu_places.has_nvidia()


def mps_process() -> int | None:
    """Returns the process id of NVIDIA's Multi-Process Service. None if it does not run."""
    for folder in gpu_places.mps():
        try:
            pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
        except (OSError, ValueError):
            continue
        if Path(f"/proc/{pid}").exists():
            return pid
    return None


def _ask(query: str) -> tuple[list[list[str]], str]:
    """Returns the cells of each printed line, and the reason if there is no output."""
    program = DriverProgram()
    output = program.run([query, "--format=csv,noheader,nounits"], _ANSWER_S)
    rows = csv.reader((output or "").splitlines(), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if row], program.problem
