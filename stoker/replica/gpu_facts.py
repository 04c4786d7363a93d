"""Facts about the machine's GPUs that need no CUDA in this process."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.sandbox import gpu_places

_ANSWER_S = 20.0
_NEEDED, _NEEDED_LATELY = ("nvidiactl", "nvidia-uvm"), ("nvidia-uvm-tools",)
"""Devices that CUDA opens: in all releases of the driver, and since release 570."""


@dataclass(frozen=True)
class Listed:
    """Devices as `nvidia-smi` lists them."""

    names: tuple[str, ...] = ()
    driver: str = ""
    problem: str = ""
    """Why the program gave no answer. Empty if it is not installed or answered."""


def listed() -> Listed:
    answer = _asked("--query-gpu=driver_version,name,memory.total")
    if isinstance(answer, str):
        return Listed(problem=answer)
    rows = [[part.strip() for part in line.split(",")] for line in answer]
    rows = [row for row in rows if len(row) == 3 and row[2].isdecimal()]
    names = tuple(f"{name}, {int(mib):,} MiB" for _, name, mib in rows)
    return Listed(names, rows[0][0] if rows else "")


def used_mib() -> int | None:
    """Returns the used memory of all devices in MiB. None if unknown."""
    answer = _asked("--query-gpu=memory.used")
    if isinstance(answer, str):
        return None
    numbers = [int(line) for line in answer if line.strip().isdecimal()]
    return sum(numbers) if numbers else None


def missing_devices() -> tuple[list[str], bool]:
    """Returns the missing device files, and whether CUDA cannot start without them."""
    missing = [name for name in (*_NEEDED, *_NEEDED_LATELY) if not Path("/dev", name).exists()]
    return [f"/dev/{name}" for name in missing], any(name in _NEEDED for name in missing)


def has_driver() -> bool:
    """Returns True if anything suggests an NVIDIA driver."""
    return gpu_places.has_program() or gpu_places.has_nvidia()


def mps_process() -> int | None:
    """Returns the process of NVIDIA's Multi-Process Service. None if it does not run."""
    for folder in gpu_places.mps():
        try:
            pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
        except (OSError, ValueError):
            continue
        if Path(f"/proc/{pid}").exists():
            return pid
    return None


def _asked(query: str) -> list[str] | str:
    """Returns the lines of the driver's program, or why there are none."""
    program = shutil.which(gpu_places.PROGRAM)
    if program is None:
        return ""
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own program, words of ours
            [program, query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{gpu_places.PROGRAM} gives no answer within {_ANSWER_S:.0f} s"
    except (OSError, UnicodeError) as error:
        return f"{gpu_places.PROGRAM} could not be run: {error}"
    if answer.returncode:
        lines = (answer.stdout + answer.stderr).strip().splitlines()
        return f"{gpu_places.PROGRAM}: {lines[0] if lines else answer.returncode}"
    return answer.stdout.splitlines()
