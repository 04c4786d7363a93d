"""Files that a GPU's user-mode driver needs. Only processes that hold a GPU may open them.

Each entry names its source. docs/architecture/security.md has the table.
"""

import functools
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

# libnvidia-container mounts the first four for compute. The driver opens nvidia-uvm-tools since
# release 570 (nolabs-ai/nono#651). The folders hold MIG instances and channels of NVLink domains.
# Excluded: nvidia-modeset and the NVSwitch devices, which compute does not use.
_NVIDIA = re.compile(
    r"nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-caps|nvidia-caps-imex-channels"
)
# ROCm opens both (ROCm's documentation of containers).
_AMD, _AMD_RENDERING = "kfd", Path("/dev/dri")
_FACTS = (
    # PCI and NUMA topology, and the state of the driver's modules: NVIDIA/NemoClaw's policy for
    # GPUs, google/gvisor#12876.
    *("/sys/devices", "/sys/class", "/sys/bus", "/sys/module"),
    # The driver's parameters and the minor numbers of MIG instances: libnvidia-container.
    *("/proc/driver", "/proc/devices", "/proc/modules"),
    "/run/nvidia-persistenced",
)
_THREADS = Path("/proc/self/task")
"""The driver names its threads in `/proc/self/task/*/comm`. If it may not write there, it fails
with error 304 since release 570 (NVIDIA/OpenShell#710, nolabs-ai/nono#673).
"""
_PROCESSES = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - shared memory
PROGRAM = "nvidia-smi"
_LIBRARY = re.compile(r"lib.+\.so(\.[0-9.]+)?")
_DRIVER_LIBRARY = "libcuda.so.1"
_LOADER = Path("/etc/ld.so.conf")
_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_FOLDER = Path("/tmp/nvidia-mps")  # noqa: S108 - default of NVIDIA's documentation of MPS
_NOBODY = 65_534


@functools.cache
def gpus() -> tuple[Path, ...]:
    """Returns the devices of GPUs that engines compute on. Empty without such a GPU. Must be called
    first outside the walls, because the folder cannot be listed inside them.
    """
    devices = [*Path("/dev").iterdir()]
    nvidia = [device for device in devices if _NVIDIA.fullmatch(device.name)]
    amd = [device for device in devices if device.name == _AMD]
    return (*nvidia, *amd, *([_AMD_RENDERING] if amd else []))


def has_nvidia() -> bool:
    """Returns True if the machine has an NVIDIA GPU."""
    return any(device.name.startswith("nvidia") for device in gpus())


def has_program() -> bool:
    """Returns True if `nvidia-smi` is installed."""
    return shutil.which(PROGRAM) is not None


def facts() -> list[Path]:
    return [Path(name) for name in _FACTS]


def shared_memory() -> list[Path]:
    """Returns the folder in which CUDA, and gloo in vLLM, share memory between processes."""
    return [_SHARED_MEMORY]


def thread_names(*, has_child: bool, is_root: bool) -> list[Path]:
    """Returns the folder in which the driver names its threads.

    A rule for a child process must include all of /proc, because the child's id is not known.
    Only file permissions protect other processes there, and they do not stop root.
    """
    return [_PROCESSES if has_child and not is_root else _THREADS]


def mps() -> list[Path]:
    """Returns the folder with the pipes of a running Multi-Process Service."""
    folder = Path(os.environ.get(_MPS) or _MPS_FOLDER)
    return [folder] if folder.is_dir() else []


def groups(devices: tuple[Path, ...] | None = None) -> list[int]:
    """Returns the groups that may open the devices, if not every user may.

    Distributions give AMD's devices to the group `render`. NVIDIA's driver has a setting for it
    (NVreg_DeviceFileGID). Never returns root's group.
    """
    numbers: set[int] = set()
    for device in _files(gpus() if devices is None else devices):
        status = device.stat()
        is_for_all = status.st_mode & stat.S_IWOTH
        if status.st_mode & stat.S_IWGRP and not is_for_all and status.st_gid not in (0, _NOBODY):
            numbers.add(status.st_gid)
    return sorted(numbers)


@functools.cache
def libraries() -> tuple[Path, ...]:
    """Returns the driver's libraries, in whatever folders the loader finds them.

    Containers mount them in folders such as /usr/local/nvidia/lib64 and set LD_LIBRARY_PATH. Other
    content of these folders is not included. Links are followed.
    """
    folders = (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_configured(_LOADER))
    paths: dict[Path, None] = {}
    for folder in dict.fromkeys(Path(name) for name in folders if name.startswith("/")):
        if (folder / _DRIVER_LIBRARY).exists():
            real = folder.resolve()
            found = [entry for entry in real.iterdir() if _LIBRARY.fullmatch(entry.name)]
            paths |= dict.fromkeys(path for entry in found for path in (entry, entry.resolve()))
    return tuple(paths)


def _configured(file: Path) -> Iterator[str]:
    """Yields the folders of the loader's configuration."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in map(str.strip, lines):
        if line.startswith("include "):
            for included in sorted(Path("/").glob(line.split(maxsplit=1)[1].lstrip("/"))):
                yield from _configured(included)
        elif line and not line.startswith("#"):
            yield line


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (entry for entry in path.iterdir() if not entry.is_dir())
        elif path.exists():
            yield path
