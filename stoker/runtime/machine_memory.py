"""How much memory there is, and what of it is for replicas."""

from pathlib import Path

import psutil

from stoker.base.config import MIB

SHARE = 0.8
"""Of the machine's memory, what replicas may take where no setting says so: the rest is for the
server, the engines' shared code, conversions and the files that the kernel keeps."""

_CGROUP_LIMITS = ("memory.max", "memory.limit_in_bytes")
_CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))


def machine_bytes() -> int:
    """The machine's memory, or less where a control group allows less."""
    return min([psutil.virtual_memory().total, *_cgroup_limits()])


def budget_bytes(given_mib: int) -> int:
    """What replicas may take together: what is given, or else the machine's share of it."""
    return given_mib * MIB or int(machine_bytes() * SHARE)


def _cgroup_limits() -> list[int]:
    """The limits of this process' control group and its parents, of either version."""
    found: list[int] = []
    for folder in control_groups():
        for name in _CGROUP_LIMITS:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal():
                found.append(int(text))
    return found


def control_groups() -> list[Path]:
    """The folders of this process' control group and its parents, of either version."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        for root in _CGROUP_ROOTS:
            own = root / path.lstrip("/")
            folders += [own, *(one for one in own.parents if one.is_relative_to(root))]
    return folders
